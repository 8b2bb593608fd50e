"""Counts the batches of a worker that servers have lost. A server that fails twice may lose some of them twice."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LostUpdates"]

_Who = TypeVar("_Who")


class LostUpdates(Generic[_Who]):
    """Counts every batch once per key (such as a worker and a server), however often it is reported.

    >>> lost = LostUpdates[str]()
    >>> lost.add("rows of server 1", range(130, 142))
    12
    >>> lost.add("rows of server 1", range(130, 154))  # restored to the same state as the first time
    12
    >>> lost.counts()
    {'rows of server 1': 24}
    """

    def __init__(self) -> None:
        self._ranges: dict[_Who, list[range]] = defaultdict(list)

    def add(self, whose: _Who, batches: range) -> int:
        """Adds batches to a key and returns how many of them are new."""
        before = _count(self._ranges[whose])
        self._ranges[whose] = _merged([*self._ranges[whose], batches])
        return _count(self._ranges[whose]) - before

    def counts(self) -> dict[_Who, int]:
        """Returns the number of lost batches by key."""
        return {whose: _count(ranges) for whose, ranges in self._ranges.items() if ranges}

    def ranges(self) -> list[tuple[_Who, range]]:
        """Returns all added batches, as disjoint ranges."""
        return [(whose, each) for whose, ranges in self._ranges.items() for each in ranges]

    def clear(self) -> None:
        """Discards all counts, after all servers were restored to one state."""
        self._ranges.clear()


def _count(ranges: Iterable[range]) -> int:
    return sum(len(each) for each in ranges)


def _merged(ranges: Iterable[range]) -> list[range]:
    """Returns the same numbers in as few ranges as possible."""
    found: list[range] = []
    for each in sorted((each for each in ranges if each), key=lambda each: each.start):
        if found and each.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, each.stop))
        else:
            found.append(each)
    return found
