"""Decides when a serving copy loads trained rows and weights, in event time."""

from __future__ import annotations

import math
from typing import NamedTuple

from monolith.config import Config, config

__all__ = ["Due", "SyncClock", "SyncRule"]


@config
class SyncRule(Config):
    """Sync intervals of a serving copy.

    >>> SyncRule(rows_seconds=60, dense_seconds=86_400)  # as the paper serves: rows by the minute, weights by the day
    SyncRule(rows_seconds=60, dense_seconds=86400)
    """

    rows_seconds: float = 60.0
    """Seconds of event time from one load of rows to the next; 0: before every batch; infinite: only once, when
    measuring begins, like a model that is trained in batches and then served."""
    dense_seconds: float | None = None
    """Interval for dense weights; None: together with the rows."""

    def __post_init__(self) -> None:
        for name in ("rows_seconds", "dense_seconds"):
            given = getattr(self, name)
            if given is not None and not given >= 0:
                raise ValueError(f"SyncRule: {name} must be >= 0 seconds of event time, got {given!r}")

    @property
    def is_frozen(self) -> bool:
        """Whether the copy is loaded only once, when measuring begins."""
        return math.isinf(self.rows_seconds) and (self.dense_seconds is None or math.isinf(self.dense_seconds))


class Due(NamedTuple):
    """What is to be loaded now."""

    rows: bool
    dense: bool


class SyncClock:
    """Schedule of a `SyncRule`.

    Intervals count from the start of measuring, so that copies with the same interval agree.

    >>> clock = SyncClock(SyncRule(rows_seconds=60, dense_seconds=3600), begin=1000)
    >>> [clock.due(time).rows for time in (1003, 1050, 1061, 1119, 1300, 1310)]
    [True, False, True, False, True, False]
    """

    def __init__(self, rule: SyncRule, *, begin: int) -> None:
        self._rows = _Beat(rule.rows_seconds, begin)
        self._dense = self._rows if rule.dense_seconds is None else _Beat(rule.dense_seconds, begin)

    def due(self, time: int) -> Due:
        """Returns what is due before an example of this event time is predicted, and marks it as done."""
        rows = self._rows.passes(time)
        return Due(rows, rows if self._dense is self._rows else self._dense.passes(time))


class _Beat:
    """Detects whether another interval has begun since the last call."""

    def __init__(self, seconds: float, begin: int) -> None:
        self._seconds = seconds
        self._begin = begin
        self._number = -1

    def passes(self, time: int) -> bool:
        if self._seconds == 0:
            return True
        number = max(0, int((time - self._begin) / self._seconds))
        if number <= self._number:
            return False
        self._number = number
        return True
