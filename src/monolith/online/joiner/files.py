"""Events from growing files, and examples to a file; one file per partition."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from monolith import _core
from monolith.data.records import MAX_RECORD_BYTES
from monolith.errors import DataLossError, FailedPreconditionError
from monolith.files import LocalStorage, named_errors, open_if_there, refuse_special_file
from monolith.online.joiner.endpoints import Arrived, plain_offset
from monolith.online.joiner.examples import whole_examples

if TYPE_CHECKING:
    from monolith.data.records import BadRecords, Framing
    from monolith.online.joiner.endpoints import JoinPosition

_CHUNK = 1 << 20


class FileInput:
    """Reader of the complete records of a growing file; waits at a torn one. A missing file counts as empty.

    Args:
        path: A local file.
        framing: Framing of the records.
        bad: Policy for unreadable records.
    """

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
        began, self._offset = self._offset, self._offset + end
        return Arrived(
            [data[begin : begin + length] for begin, length in pairs],
            [began + begin for begin, _ in pairs],
            self._offset,
        )

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
