"""Which batches of a worker servers have lost: a server that is lost twice may lose some of them twice."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LostUpdates"]

_Who = TypeVar("_Who")


class LostUpdates(Generic[_Who]):
    """Counts every batch once for each that lost it, such as a worker's rows on a server, however often it is told.

    >>> lost = LostUpdates[str]()
    >>> lost.add("rows of server 1", range(130, 142))
    12
    >>> lost.add("rows of server 1", range(130, 154))  # it came back as it was the first time
    12
    >>> lost.counts()
    {'rows of server 1': 24}
    """

    def __init__(self) -> None:
        self._ranges: dict[_Who, list[range]] = defaultdict(list)

    def add(self, whose: _Who, batches: range) -> int:
        """How many of these batches are told for the first time."""
        before = _count(self._ranges[whose])
        self._ranges[whose] = _merged([*self._ranges[whose], batches])
        return _count(self._ranges[whose]) - before

    def counts(self) -> dict[_Who, int]:
        """How many each has lost."""
        return {whose: _count(ranges) for whose, ranges in self._ranges.items() if ranges}

    def ranges(self) -> list[tuple[_Who, range]]:
        """All that was added, in ranges that do not meet."""
        return [(whose, each) for whose, ranges in self._ranges.items() for each in ranges]

    def clear(self) -> None:
        """All servers went back to one moment, together."""
        self._ranges.clear()


def _count(ranges: Iterable[range]) -> int:
    return sum(len(each) for each in ranges)


def _merged(ranges: Iterable[range]) -> list[range]:
    """The same numbers, in as few ranges as can be."""
    found: list[range] = []
    for each in sorted((each for each in ranges if each), key=lambda each: each.start):
        if found and each.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, each.stop))
        else:
            found.append(each)
    return found
