"""`DenseSets`: dense weights of a log; each request uses the newest ones whose rows its shards have."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from monolith.serving.shards.row_versions import has_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = ["DenseSet", "DenseSets"]

_MOST = 16
"""Number of sets to keep: replicas of shards are a few increments apart."""


class DenseSet(NamedTuple):
    """Weights of one increment."""

    weights: Mapping[str, Tensor]
    number: int
    """Number of the increment."""
    needs: Mapping[str, int]
    """Part -> number of the increment of rows with which they were trained."""


class DenseSets:
    """The newest sets of weights. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sets: list[DenseSet] = []
        self._chosen: DenseSet | None = None

    def add(self, found: DenseSet) -> None:
        """Adds a newer set.

        If there are too many, the oldest is dropped, except for the one in use, whose rows stalled shards have.
        """
        with self._lock:
            self._sets.append(found)
            if len(self._sets) > _MOST:
                del self._sets[1 if self._sets[0] is self._chosen else 0]

    def choose(self, told: Mapping[int, Mapping[str, int]], ranges: Sequence[range]) -> DenseSet | None:
        """Returns the newest set whose rows the shards have; None if there is none.

        Args:
            told: Shard -> part of the log -> number of its last applied increment.
            ranges: The buckets of each shard.
        """
        with self._lock:
            for each in reversed(self._sets):
                if has_rows(each.needs, told, ranges):
                    self._chosen = each
                    return each
        return None

    @property
    def numbers(self) -> set[int]:
        """Numbers of the kept sets."""
        with self._lock:
            return {each.number for each in self._sets}
