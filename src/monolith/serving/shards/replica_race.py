"""Which replicas of one shard are asked, and when: decisions alone, without clocks and connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.errors import OpError

__all__ = ["ReplicaRace"]


@dataclass(slots=True)
class ReplicaRace:
    """Asks one replica; another one where that fails, or does not answer for a while. Each is asked once at most.

    Args:
        replicas: In the order in which they are asked.
        hedge_seconds: How long one is waited for before another is asked beside it.
    """

    replicas: Sequence[str]
    hedge_seconds: float
    next_hedge: float | None = None
    """When `hedge` should be called; None: never."""
    errors: list[OpError] = field(default_factory=list)
    """Of those that failed, in their order."""
    _asked: int = 0
    _under_way: int = 0

    def begin(self, now: float) -> str | None:
        """The replica to ask first; None: there is none."""
        return self._ask(now)

    def failed(self, error: OpError, now: float) -> str | None:
        """One has failed: the replica to ask instead; None: there is none left."""
        self.errors.append(error)
        self._under_way -= 1
        return self._ask(now)

    def hedge(self, now: float) -> str | None:
        """The replica to ask beside those under way; None: it is too early, or there is none left."""
        if self.next_hedge is None or now < self.next_hedge:
            return None
        return self._ask(now)

    @property
    def latest(self) -> str:
        """The replica that was asked last. REQUIRES: one was."""
        return self.replicas[self._asked - 1]

    @property
    def is_lost(self) -> bool:
        """Whether nobody is left who could answer."""
        return self._under_way == 0 and self._asked == len(self.replicas)

    def _ask(self, now: float) -> str | None:
        if self._asked == len(self.replicas):
            self.next_hedge = None
            return None
        asked = self.replicas[self._asked]
        self._asked += 1
        self._under_way += 1
        self.next_hedge = now + self.hedge_seconds if self._asked < len(self.replicas) else None
        return asked
