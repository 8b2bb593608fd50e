"""Which batches of a worker servers have lost: a server that is lost twice may lose some of them twice."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["LostUpdates"]


class LostUpdates:
    """Counts every batch once for each that lost it, such as a worker's rows on a server.

    >>> lost = LostUpdates()
    >>> lost.add("rows of server 1", range(130, 142))
    12
    >>> lost.add("rows of server 1", range(130, 154))  # it came back as it was the first time
    12
    """

    def __init__(self) -> None:
        self._ranges: dict[Hashable, list[range]] = defaultdict(list)

    def add(self, whose: Hashable, batches: range) -> int:
        """How many of these batches are told for the first time."""
        known = {each for other in self._ranges[whose] for each in range(*_overlap(other, batches))}
        self._ranges[whose].append(batches)
        return len(batches) - len(known)

    def clear(self) -> None:
        """All servers went back to one moment, together."""
        self._ranges.clear()


def _overlap(one: range, other: range) -> tuple[int, int]:
    return max(one.start, other.start), min(one.stop, other.stop)
