"""Decides which replicas of one shard are called, and when. Pure: no clocks, no connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.errors import OpError


@dataclass(slots=True)
class HedgedRequest:
    """Hedged request to one shard: calls one replica, and another one if it fails or is slow.

    Each is called at most once.

    Args:
        replicas: Replicas in the order of calls.
        hedge_seconds: Delay after which another replica is called in addition.
    """

    replicas: Sequence[str]
    hedge_seconds: float
    next_hedge: float | None = None
    """Time at which `hedge` should be called; None: never."""
    errors: list[OpError] = field(default_factory=list)
    """Errors of the failed replicas, in order."""
    _asked: int = 0
    _under_way: int = 0

    def begin(self, now: float) -> str | None:
        """Returns the replica to call first; None if there is none."""
        return self._ask(now)

    def failed(self, error: OpError, now: float) -> str | None:
        """Records a failure; returns the replica to call instead, or None if there is none left."""
        self.errors.append(error)
        self._under_way -= 1
        return self._ask(now)

    def hedge(self, now: float) -> str | None:
        """Returns the replica to call in addition to those in flight; None if too early, or none is left."""
        if self.next_hedge is None or now < self.next_hedge:
            return None
        return self._ask(now)

    @property
    def latest(self) -> str:
        """The replica called last. REQUIRES: one was called."""
        return self.replicas[self._asked - 1]

    @property
    def is_lost(self) -> bool:
        """Whether no replica is left that could answer."""
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
