"""How far training is: the numbers of batches, updates and steps."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolith.tables.store import Applied, Update


class Progress:
    """Shared by a module and its copies, which train the same rows; any thread may call it."""

    def __init__(self, *, last_update: int) -> None:
        self._lock = threading.Lock()
        self._next_batch = 0
        self.next_update = last_update + 1
        """Number of the next update."""
        self.last_update = last_update
        """Number of the last update that the store has; -1 before the first."""
        self.global_step = 0
        """Number of the next step."""

    def next_batch(self) -> int:
        """A number that no batch had before."""
        with self._lock:
            self._next_batch += 1
            return self._next_batch - 1

    @property
    def num_batches(self) -> int:
        """Batches numbered here or applied so far: every number from this one on is free."""
        with self._lock:
            return self._next_batch

    def count_update(self, rule: Update, applied: Applied, *, newest_batch: int) -> None:
        """A step was made of batches up to this one; the store does not number an update that it had seen before."""
        with self._lock:
            self._next_batch = max(self._next_batch, newest_batch + 1)
            if not applied.duplicate:
                self.last_update = max(self.last_update, rule.seq)
                self.next_update = self.last_update + 1
            self.global_step = rule.step + 1

    def save(self) -> dict[str, int]:
        """Plain numbers."""
        with self._lock:
            return {
                "next_batch": self._next_batch,
                "next_update": self.next_update,
                "global_step": self.global_step,
            }

    def load(self, state: dict[str, int], *, last_update: int) -> None:
        """What `save` returned, beside a store that has come so far; numbers already used are not used again."""
        with self._lock:
            self._next_batch = max(self._next_batch, int(state["next_batch"]))
            self.last_update = last_update
            self.next_update = max(last_update + 1, int(state["next_update"]))
            self.global_step = int(state["global_step"])
