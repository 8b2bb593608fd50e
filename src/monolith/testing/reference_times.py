"""Bounds on how far one update may move the expiry clock of the reference, in plain Python.

A time more than a day beyond the newest so far is set back to where the data stands: the newest so far or, if that is
later, the lower median of the update's times, at most a day beyond the newest so far. A store that has seen no time
takes the median for it, and leaves four times the way from the lower quartile to it, if that is more than a day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["bounded_times"]

_DAY = 86400


def bounded_times(times: Sequence[int], newest: int) -> tuple[list[int], int]:
    """Returns the bounded times, and how many of them were changed.

    >>> bounded_times([100, 4_000_000_000, 170], newest=90)
    ([100, 170, 170], 1)
    """
    if not times:
        return [], 0
    in_order = sorted(times)
    quartile, median = (in_order[(len(times) - 1) // part] for part in (4, 2))
    limit = newest + _DAY if newest else median + max(_DAY, 4 * (median - quartile))
    here = min(max(newest, median), limit)
    return [time if time <= limit else here for time in times], sum(time > limit for time in times)
