"""Events from growing and rotated files, and examples to a file; one file, or one pattern of files, per partition."""

from __future__ import annotations

import glob
import heapq
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith import _core
from monolith.clock import LOOK_SECONDS, SystemClock
from monolith.data.records import MAX_RECORD_BYTES
from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from monolith.files import LocalStorage, named_errors, open_if_there, refuse_special_file
from monolith.online.joiner.endpoints import Arrived, plain_offset
from monolith.online.joiner.events import decode_events
from monolith.online.joiner.examples import whole_examples

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.data.records import BadRecords, Framing
    from monolith.online.joiner.endpoints import JoinPosition


_CHUNK = 1 << 20


class FileInput:
    """Reader of the complete records of a growing file; waits at a torn one. A missing file counts as empty."""

    def __init__(self, path: str, framing: Framing, bad: BadRecords) -> None:
        self.name = f"file '{path}'"
        self._path = path
        self._framing = framing
        self._bad = bad
        self._descriptor: int | None = None
        self._offset = 0
        self._read_bytes = _CHUNK
        self._came_to_end = False

    def open(self, offset: JoinPosition | None) -> None:
        """Seeks to an offset."""
        self._offset = plain_offset(offset, self.name)
        self._descriptor = open_if_there(self._path)
        if self._offset and (self._descriptor is None or os.fstat(self._descriptor).st_size < self._offset):
            raise DataLossError(
                f"{self.name}: ends before byte {self._offset}, up to which it was read; it is not the file that was"
                " read before: put that back, or begin with another state_dir"
            )

    def read(self, limit: int) -> Arrived:
        """Returns at most `limit` records, without waiting."""
        if self._descriptor is None:
            self._descriptor = open_if_there(self._path)
        if self._descriptor is None:
            self._came_to_end = True
            return Arrived((), (), self._offset)
        with named_errors(self._path, "read"):
            data = os.pread(self._descriptor, self._read_bytes, self._offset)
        spans, end, needed, problem, reason, resume = _core.scan_frames(
            np.frombuffer(data, np.uint8),
            0,
            framing=self._framing.value,
            at_end=False,
            max_record_bytes=MAX_RECORD_BYTES,
            max_records=limit,
        )
        pairs = spans.reshape(-1, 2).tolist()
        if problem and not pairs:
            self._came_to_end = False
            self._leave_out(reason, resume)
            return Arrived((), (), self._offset)
        # A record may be larger than the chunk that was read.
        self._read_bytes = max(_CHUNK, needed if not pairs else 0)
        self._came_to_end = not pairs and len(data) < self._read_bytes
        records = [data[begin : begin + length] for begin, length in pairs]
        places = [self._offset + begin for begin, _ in pairs]
        self._offset += end
        return Arrived(records, places, self._offset)

    def is_at_end(self) -> bool:
        """Returns whether the last read found no further complete record."""
        return self._came_to_end

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _leave_out(self, reason: str, resume: int) -> None:
        text = f"{self.name}: offset {self._offset}: {reason}"
        if resume <= 0:
            raise DataLossError(f"{text}; the next record cannot be found: is {self._framing.name} its framing?")
        self._bad.add(text)
        self._offset += resume


class FileOutput:
    """Output file; appended records are synced before the call returns."""

    def __init__(self, path: str) -> None:
        self.name = f"file '{path}'"
        self._path = path
        self._descriptor: int | None = None
        self._end = 0

    def open(self, place: int) -> tuple[int, int]:
        """Finds the last complete record after `place`, and truncates a torn one."""
        refuse_special_file(self._path)
        with named_errors(self._path, "written"):
            folder = LocalStorage(Path(self._path).parent)
            folder.make()
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            folder.sync()
            size = os.fstat(self._descriptor).st_size
            if size < place:
                raise DataLossError(
                    f"{self.name}: has {size} bytes, {place} were written; it is not the output of this state: put that"
                    " back, or begin with another state_dir and output"
                )
            number, self._end = self._last_number(place, size)
            if self._end < size:
                os.ftruncate(self._descriptor, self._end)
        return number, self._end

    def append(self, packed: bytes) -> int:
        """Appends packed examples and syncs the file."""
        descriptor = self._opened()
        with named_errors(self._path, "written"):
            rest = memoryview(packed)
            while rest:
                written = os.pwrite(descriptor, rest, self._end)
                rest, self._end = rest[written:], self._end + written
            os.fdatasync(descriptor)
        return self._end

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _last_number(self, place: int, size: int) -> tuple[int, int]:
        descriptor = self._opened()
        number, num_bytes = 0, _CHUNK
        while place < size:
            data = os.pread(descriptor, num_bytes, place)
            try:
                examples, end = whole_examples(data)
            except DataLossError as error:
                raise DataLossError(f"{self.name}: from byte {place}: {error.message}") from error
            if examples:
                number, place, num_bytes = examples[-1].number, place + end, _CHUNK
            elif place + len(data) >= size:
                break
            else:
                num_bytes *= 2
        return number, place

    def _opened(self) -> int:
        if self._descriptor is None:
            raise FailedPreconditionError(f"{self.name}: is not open; call open first")
        return self._descriptor


_AT_ONCE = 1024
"""Maximum number of buffered records of one file."""
_LONGEST_PAUSE_SECONDS = 1.0
"""Interval between two polls of a file that has not grown for a minute."""
_QUIET_SECONDS = 60.0


def is_pattern(path: str) -> bool:
    """Returns whether a path is a pattern for rotated files."""
    return "*" in path


class RolledInput:
    """Reader of all files of a pattern; returns the oldest available event of any file first. A file may be removed.

    The position in a file is the offset of a group of records and the number of them already returned: records of
    several files interleave, and only the framing can compute the offset between two records.
    """

    def __init__(self, pattern: str, framing: Framing, bad: BadRecords, clock: Clock | None = None) -> None:
        self.name = f"files '{pattern}'"
        self._pattern = pattern
        self._framing = framing
        self._bad = bad
        self._clock = clock or SystemClock()
        self._looked: float | None = None
        self._files: dict[str, _RolledFile] = {}
        self._begun: dict[str, tuple[int, int]] = {}
        """File -> position from the state; used when the file is found."""

    def open(self, offset: JoinPosition | None) -> None:
        """Seeks to the position of each file; removed files are discarded."""
        if isinstance(offset, int):
            raise InvalidArgumentError(
                f"{self.name}: the state is that of one file, read up to byte {offset}; begin with another state_dir"
            )
        self._begun = {name: (begin, taken) for name, (begin, taken) in (offset or {}).items()}
        self._look()
        self._begun.clear()

    def read(self, limit: int) -> Arrived:
        """Returns at most `limit` records, without waiting."""
        self._look()
        waiting = [(file.next_ms, name) for name, file in self._files.items() if file.fill(self._clock)]
        heapq.heapify(waiting)
        records: list[bytes] = []
        places: list[str] = []
        while waiting and len(records) < limit:
            _, name = waiting[0]
            file = self._files[name]
            record, place = file.take()
            records.append(record)
            places.append(f"{place} of {name}")
            if file.fill(self._clock):
                heapq.heapreplace(waiting, (file.next_ms, name))
            else:
                heapq.heappop(waiting)
        return Arrived(records, places, {name: file.position for name, file in self._files.items()})

    def is_at_end(self) -> bool:
        """Returns whether the last polls found no further complete record in any file."""
        return all(file.is_at_end for file in self._files.values())

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _look(self) -> None:
        """Adds new files, and discards removed ones that were read to their end."""
        now = self._clock.monotonic()
        if self._looked is not None and now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        paths = {Path(path).name: path for path in glob.glob(self._pattern)}  # noqa: PTH207 - it is a pattern
        for name in self._files.keys() - paths.keys():
            if self._files[name].is_at_end:
                self._files.pop(name).close()
        for name in sorted(paths.keys() - self._files.keys()):
            begin, taken = self._begun.get(name, (0, 0))
            self._files[name] = _RolledFile(paths[name], self._framing, self._bad, begin=begin, taken=taken)


class _BufferedRecord(NamedTuple):
    time_ms: int
    record: bytes
    place: int | str


class _RolledFile:
    """One of the files, with a buffer of records. It is open only while it is read."""

    def __init__(self, path: str, framing: Framing, bad: BadRecords, *, begin: int, taken: int) -> None:
        self._path = path
        self._input = FileInput(path, framing, bad)
        self._input.open(begin)
        self._begin = self._following = begin
        self._taken = self._to_skip = taken
        self._waiting: deque[_BufferedRecord] = deque()
        self._look_at = 0.0
        self.is_at_end = False

    @property
    def next_ms(self) -> int:
        return self._waiting[0].time_ms

    @property
    def position(self) -> list[int]:
        """Offset of the buffered records, and how many of them were taken."""
        return [self._begin, self._taken]

    def take(self) -> tuple[bytes, int | str]:
        _, record, place = self._waiting.popleft()
        self._taken += 1
        if not self._waiting:
            self._begin, self._taken = self._following, 0
        return record, place

    def fill(self, clock: Clock) -> bool:
        """Reads more if the buffer is empty; returns whether there is a record."""
        while not self._waiting and (not self.is_at_end or clock.monotonic() >= self._look_at):
            came = self._input.read(_AT_ONCE)
            assert isinstance(came.following, int)  # noqa: S101 - it is a file
            self._following = came.following
            if came.records:
                self._waiting.extend(map(_BufferedRecord, _times_of(came), came.records, came.places))
                while self._to_skip and self._waiting:
                    self._waiting.popleft()
                    self._to_skip -= 1
                if not self._waiting:
                    self._begin, self._taken = self._following, self._to_skip
            elif self._input.is_at_end():
                self._rest(clock)
                return False
        self.is_at_end = not self._waiting
        return bool(self._waiting)

    def close(self) -> None:
        self._input.close()

    def _rest(self, clock: Clock) -> None:
        """Closes a file that has no more records and schedules its next poll; idle files are polled less often."""
        self.is_at_end = True
        try:
            quiet = clock.now() - os.stat(self._path).st_mtime  # noqa: PTH116 - a path as text
        except FileNotFoundError:
            quiet = _QUIET_SECONDS
        self._look_at = clock.monotonic() + _LONGEST_PAUSE_SECONDS * min(1.0, max(0.0, quiet / _QUIET_SECONDS))
        self._input.close()


def _times_of(came: Arrived) -> list[int]:
    """Returns the times of the events; an unreadable record gets the time of the previous one, to keep the order."""
    events, problems = decode_events(came.records)
    bad = {index for index, _ in problems}
    following = iter(events)
    times: list[int] = []
    for index in range(len(came.records)):
        times.append((times[-1] if times else 0) if index in bad else next(following)[1])
    return times
