"""Files by name, pattern, range or URL of fsspec; a queue looks up its patterns as their files are needed."""

from __future__ import annotations

import datetime as dt
import glob
import hashlib
import itertools
import logging
import os
import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

import fsspec

from monolith.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
"""Paths, globs, ranges and URLs of files; one or many."""
StorageOptions: TypeAlias = "Mapping[str, Any] | None"
"""For the file system of URLs, such as the address of an object store."""

_ARCHIVES = ("zip", "tar", "libarchive")


def find_files(pattern: str, options: Mapping[str, Any]) -> list[str]:
    """Returns the files that match, in no order; a name without a pattern in it is taken as it stands."""
    is_local = "://" not in pattern
    require_known_url(pattern)
    # A name that exists is meant as it stands, whatever characters it has.
    if not glob.has_magic(pattern) or (is_local and Path(pattern).is_file()):
        return [pattern]
    if is_local:
        names = glob.glob(pattern, recursive=True)  # noqa: PTH207 - any pattern, absolute or not
        return [name for name in names if not Path(name).is_dir()]
    system, place = fsspec.core.url_to_fs(pattern, **options)
    entries = system.glob(place, detail=True)
    return [system.unstrip_protocol(name) for name, entry in entries.items() if entry["type"] != "directory"]


def open_file(path: str, options: Mapping[str, Any]) -> BinaryIO:
    """Returns a file, open to read from its start."""
    require_known_url(path)
    try:
        if "://" in path:
            return cast("BinaryIO", fsspec.open(path, "rb", **options).open())
        return Path(path).open("rb", buffering=0)
    except FileNotFoundError as error:
        raise NotFoundError(f"file '{path}': there is no such file") from error
    except IsADirectoryError as error:
        raise InvalidArgumentError(f"file '{path}': it is a folder; name its files, as in '{path}/*'") from error


def require_known_url(path: str) -> None:
    """Refuses a URL without a file system, with an alternative in the message; paths and other URLs pass."""
    protocol, mark, _ = path.partition("://")
    if not mark:
        return
    if protocol == "kafka":
        raise InvalidArgumentError(
            f"'{path}': a topic of Kafka is no file; read it by KafkaDataset('topic', 'host:port'), look into it by"
            " monolith data peek kafka://host:port/topic, and write to it with Kafka's own tools"
        )
    if protocol in _ARCHIVES:
        raise InvalidArgumentError(
            f"'{path}': files are not read out of archives, which cannot be read from a position on; unpack it, or"
            " compress each file, as x.csv.gz"
        )
    if protocol not in fsspec.available_protocols():
        known = "file://, s3://, gs://, hdfs://, http://, memory://"
        raise InvalidArgumentError(f"'{path}': fsspec has no file system {protocol}://; it supports {known} and others")


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
        forms = "{DATE(20240101,20240131)} or {INT(0,9)}"
        raise ValueError(f"pattern {pattern!r}: expected {forms}, both with two numbers")
    choices = [_values_of(kind, first, last, pattern) for kind, first, last in ranges]
    pairs = (itertools.zip_longest(texts, chosen, fillvalue="") for chosen in itertools.product(*choices))
    return ["".join(itertools.chain.from_iterable(alternating)) for alternating in pairs]


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
        text = f"{kind}({first},{last}) is empty; the first bound must not be the larger"
        raise ValueError(f"pattern {pattern!r}: {text}")
    return values


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


_LOG = logging.getLogger(__name__)


class FilePatterns:
    """Paths, globs, ranges and URLs, in the order in which they are expanded. Thread-safe.

    Args:
        paths: See `FileSet`.
        seed: Seed that shuffles the files.
        storage_options: For the file system of URLs.
    """

    def __init__(self, paths: Paths, *, seed: int | None, storage_options: StorageOptions) -> None:
        path_list = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        self._patterns = [pattern for path in path_list for pattern in expand_ranges(os.fspath(path))]
        groups = groupby(self._patterns, key=glob.has_magic)
        self._look_ups = [
            group
            for is_pattern, same_kind in groups
            for group in ([[pattern] for pattern in same_kind] if is_pattern else [list(same_kind)])
        ]
        self._options = dict(storage_options or {})
        self.seed = seed
        self.digest = hashlib.sha256(repr((self._patterns, seed)).encode()).hexdigest()[:16]
        """A short text that differs when patterns or seed do."""
        self.facts: dict[str, Any] = {"digest": self.digest, "num_look_ups": len(self._look_ups), "seed": seed}
        """Properties that identify a queue of these files, in messages, logs and saved states. Files are looked up by
        a pattern, or by all names that stand side by side."""

    def find(self, number: int) -> list[str]:
        """Returns the files of one look-up."""
        files = [file for pattern in self._look_ups[number] for file in find_files(pattern, self._options)]
        if not files:
            _LOG.warning("no file matches %r", self._look_ups[number][0])
        return files

    def nothing_found(self) -> NotFoundError:
        """Returns what to raise when all were looked up, and there is no file."""
        return NotFoundError(f"no file matches {', '.join(map(repr, self._patterns)) or 'an empty list of paths'}")
