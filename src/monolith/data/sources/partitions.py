"""Which paths: partitions by day and hour as data platforms lay them out, and patterns with ranges in them."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["expand_ranges", "partition_patterns"]

_RANGE = re.compile(r"\{(DATE|INT)\((\d+),\s*(\d+)\)\}")
_DAY, _HOUR = "%Y%m%d", "%Y%m%d%H"


def partition_patterns(
    input_path: str | os.PathLike[str],
    *,
    start_date: str,
    end_date: str | None = None,
    is_hourly: bool = False,
    start_hour: int = 0,
    end_hour: int = 0,
    wildcard: str = "*",
) -> list[str]:
    """Returns the patterns of the partitions from a day (and hour) up to another, which is not included.

    >>> partition_patterns("/clicks", start_date="20240228", end_date="20240301", wildcard="part-*")
    ['/clicks/20240228/part-*', '/clicks/20240229/part-*']
    >>> hours = {"is_hourly": True, "start_hour": 23, "end_hour": 1}
    >>> partition_patterns("/clicks", start_date="20240101", end_date="20240102", **hours)
    ['/clicks/20240101/23*', '/clicks/20240102/00*']

    Args:
        input_path: The folder of the partitions, or a URL of fsspec.
        start_date: First day, as yyyymmdd.
        end_date: Day after the last one; None for today.
        is_hourly: Whether files are named by their hour inside the folder of a day: `<path>/<yyyymmdd>/<hh><wildcard>`;
            otherwise `<path>/<yyyymmdd>/<wildcard>`.
        start_hour: First hour on the first day; for hourly partitions only.
        end_hour: Hour after the last one on `end_date`.
        wildcard: Wildcard of the files in a partition.
    """
    if not is_hourly and (start_hour or end_hour):
        raise ValueError(f"start_hour and end_hour need is_hourly=True, got {start_hour} and {end_hour}")
    for name, hour in (("start_hour", start_hour), ("end_hour", end_hour)):
        if not 0 <= hour <= 24:
            raise ValueError(f"{name} must be from 0 to 24, got {hour}")
    today = dt.datetime.now(tz=dt.UTC).strftime(_DAY)
    begin = _time_of(start_date, _DAY) + dt.timedelta(hours=start_hour)
    end = _time_of(today if end_date is None else end_date, _DAY) + dt.timedelta(hours=end_hour)
    folder = os.fspath(input_path).rstrip("/")
    step, form = (dt.timedelta(hours=1), "%Y%m%d/%H") if is_hourly else (dt.timedelta(days=1), "%Y%m%d/")
    return [f"{folder}/{time.strftime(form)}{wildcard}" for time in _times(begin, end, step)]


def expand_ranges(pattern: str) -> list[str]:
    """Expands the ranges in a pattern to patterns; both ends are included.

    `{DATE(a,b)}` counts days (yyyymmdd) or hours (yyyymmddhh), `{INT(a,b)}` integers. Several ranges give every
    combination, the last one changing first.

    >>> expand_ranges("/clicks/{DATE(20240228,20240229)}/part-{INT(1,2)}*")[1:3]
    ['/clicks/20240228/part-2*', '/clicks/20240229/part-1*']
    """
    pieces = _RANGE.split(pattern)
    texts, ranges = pieces[::4], zip(pieces[1::4], pieces[2::4], pieces[3::4], strict=True)
    if any("{DATE" in text or "{INT" in text for text in texts):
        raise ValueError(
            f"pattern {pattern!r}: expected {{DATE(20240101,20240131)}} or {{INT(0,9)}}, both with two numbers"
        )
    choices = [_values_of(kind, first, last, pattern) for kind, first, last in ranges]
    return ["".join(_alternate(texts, chosen)) for chosen in itertools.product(*choices)]


def _values_of(kind: str, first: str, last: str, pattern: str) -> list[str]:
    if kind == "INT":
        values = [str(number) for number in range(int(first), int(last) + 1)]
    else:
        if len(first) != len(last) or len(first) not in (8, 10):
            raise ValueError(f"pattern {pattern!r}: bounds of DATE must both be yyyymmdd or yyyymmddhh")
        form, step = (_DAY, dt.timedelta(days=1)) if len(first) == 8 else (_HOUR, dt.timedelta(hours=1))
        begin, end = _time_of(first, form), _time_of(last, form) + step
        values = [time.strftime(form) for time in _times(begin, end, step)]
    if not values:
        raise ValueError(
            f"pattern {pattern!r}: {kind}({first},{last}) is empty; the first bound must not be the larger"
        )
    return values


def _alternate(texts: Sequence[str], values: Sequence[str]) -> Iterator[str]:
    for text, value in itertools.zip_longest(texts, values, fillvalue=""):
        yield text
        yield value


def _times(begin: dt.datetime, end: dt.datetime, step: dt.timedelta) -> Iterator[dt.datetime]:
    while begin < end:
        yield begin
        begin += step


def _time_of(text: str, form: str) -> dt.datetime:
    try:
        return dt.datetime.strptime(str(text), form).replace(tzinfo=dt.UTC)
    except ValueError:
        expected = "yyyymmdd" if form == _DAY else "yyyymmddhh"
        raise ValueError(f"a date must be written {expected}, got {text!r}") from None
