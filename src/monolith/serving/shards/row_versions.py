"""Computes which increments of a log the rows of an answer contain, from the reports of its shards.

`DenseSets` holds dense weights of the log; each request uses the newest ones whose rows its shards have.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from monolith.deltalog import store_of
from monolith.tables import shared_buckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor


def merged_versions(reported: Mapping[int, Mapping[str, int]], ranges: Sequence[range]) -> dict[str, int]:
    """Returns part -> number: no row of these shards is older than that increment.

    Args:
        reported: Shard -> part -> number of its last applied increment.
        ranges: The buckets of each shard: a shard without buckets of a part does not follow it.

    >>> merged_versions({0: {"m.0000-1024": 7}, 1: {"m.0000-1024": 5}}, [range(512), range(512, 1024)])
    {'m.0000-1024': 5}
    """
    versions = {}
    for part in sorted({part for numbers_by_part in reported.values() for part in numbers_by_part}):
        numbers = [reported[shard].get(part) for shard in _concerned(part, reported, ranges)]
        known = [number for number in numbers if number is not None]
        if known and len(known) == len(numbers):
            versions[part] = min(known)
    return versions


def has_rows(needs: Mapping[str, int], reported: Mapping[int, Mapping[str, int]], ranges: Sequence[range]) -> bool:
    """Returns whether all these shards have the rows with which dense weights were trained."""
    return all(
        reported[shard].get(part, -1) >= number
        for part, number in needs.items()
        for shard in _concerned(part, reported, ranges)
    )


def _concerned(part: str, shards: Iterable[int], ranges: Sequence[range]) -> list[int]:
    place = store_of(part)
    return [] if place is None else [shard for shard in shards if len(shared_buckets(place[1], ranges[shard]))]


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

    def add(self, dense: DenseSet) -> None:
        """Adds a newer set.

        If there are too many, the oldest is dropped, except for the one in use, whose rows stalled shards have.
        """
        with self._lock:
            self._sets.append(dense)
            if len(self._sets) > _MOST:
                del self._sets[1 if self._sets[0] is self._chosen else 0]

    def choose(self, reported: Mapping[int, Mapping[str, int]], ranges: Sequence[range]) -> DenseSet | None:
        """Returns the newest set whose rows the shards have; None if there is none."""
        with self._lock:
            for dense in reversed(self._sets):
                if has_rows(dense.needs, reported, ranges):
                    self._chosen = dense
                    return dense
        return None

    @property
    def numbers(self) -> set[int]:
        """Numbers of the kept sets."""
        with self._lock:
            return {dense.number for dense in self._sets}
