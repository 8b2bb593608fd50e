"""How far training is: the numbers of batches, updates and steps."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolith.tables.store import Applied, Update


class Progress:
    """Shared by a module and its copies, which train the same rows; any thread may call it."""

    def __init__(self, *, next_update: int) -> None:
        self._lock = threading.Lock()
        self._next_batch = 0
        self._next_update = next_update
        self.global_step = 0
        """Number of the next step."""

    def next_batch(self) -> int:
        """A number that no batch had before."""
        with self._lock:
            self._next_batch += 1
            return self._next_batch - 1

    @property
    def last_update(self) -> int:
        """Number of the last update handed to the store; -1 before the first."""
        return self._next_update - 1

    def count_update(self, rule: Update, applied: Applied) -> None:
        """A step was made; the store does not number an update that it had seen before."""
        with self._lock:
            if not applied.duplicate:
                self._next_update = max(self._next_update, rule.seq + 1)
            self.global_step = rule.step + 1

    def save(self) -> dict[str, int]:
        """Plain numbers."""
        with self._lock:
            return {
                "next_batch": self._next_batch,
                "next_update": self._next_update,
                "global_step": self.global_step,
            }

    def load(self, state: dict[str, int]) -> None:
        """What `save` returned; numbers already used are not used again."""
        with self._lock:
            self._next_batch = max(self._next_batch, int(state["next_batch"]))
            self._next_update = int(state["next_update"])
            self.global_step = int(state["global_step"])
