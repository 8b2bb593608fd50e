"""Computes which increments of a log the rows of an answer contain, from the reports of its shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.deltalog import store_of
from monolith.tables.history import shared_buckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["has_rows", "merged_versions"]


def merged_versions(told: Mapping[int, Mapping[str, int]], ranges: Sequence[range]) -> dict[str, int]:
    """Returns part -> number: no row of these shards is older than that increment.

    Args:
        told: Shard -> part -> number of its last applied increment.
        ranges: The buckets of each shard: a shard without buckets of a part does not follow it.

    >>> merged_versions({0: {"m.0000-1024": 7}, 1: {"m.0000-1024": 5}}, [range(512), range(512, 1024)])
    {'m.0000-1024': 5}
    """
    found = {}
    for part in sorted({part for each in told.values() for part in each}):
        numbers = [told[shard].get(part) for shard in _concerned(part, told, ranges)]
        known = [number for number in numbers if number is not None]
        if known and len(known) == len(numbers):
            found[part] = min(known)
    return found


def has_rows(needs: Mapping[str, int], told: Mapping[int, Mapping[str, int]], ranges: Sequence[range]) -> bool:
    """Returns whether all these shards have the rows with which dense weights were trained."""
    return all(
        told[shard].get(part, -1) >= number
        for part, number in needs.items()
        for shard in _concerned(part, told, ranges)
    )


def _concerned(part: str, shards: Iterable[int], ranges: Sequence[range]) -> list[int]:
    place = store_of(part)
    return [] if place is None else [shard for shard in shards if len(shared_buckets(place[1], ranges[shard]))]
