"""`DenseSets`: dense weights of a log, of which each request takes the newest whose rows its shards have."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from monolith.serving.shards.row_versions import has_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = ["DenseSet", "DenseSets"]

_MOST = 16
"""Sets that are kept: replicas of shards are a few increments apart."""


class DenseSet(NamedTuple):
    """Weights of one increment."""

    weights: Mapping[str, Tensor]
    number: int
    """Of the increment."""
    needs: Mapping[str, int]
    """Part -> number of the increment of rows that they were trained with."""


class DenseSets:
    """Keeps the newest ones. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sets: list[DenseSet] = []
        self._chosen: DenseSet | None = None

    def add(self, found: DenseSet) -> None:
        """A newer one is there.

        Where there are too many, the oldest goes; but not the one that is served, of which shards that stand still
        have the rows.
        """
        with self._lock:
            self._sets.append(found)
            if len(self._sets) > _MOST:
                del self._sets[1 if self._sets[0] is self._chosen else 0]

    def choose(self, told: Mapping[int, Mapping[str, int]], ranges: Sequence[range]) -> DenseSet | None:
        """The newest whose rows are there; None: there is none.

        Args:
            told: Shard -> part of the log -> number of its last increment that is there.
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
        """Of those that are kept."""
        with self._lock:
            return {each.number for each in self._sets}
