"""Reads the records of a file or stream, whatever its framing and compression, from any position."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import fsspec
import numpy as np

from monolith import _core
from monolith.closing import Closing
from monolith.data.records.bad_records import BadRecords
from monolith.data.records.compression import Compression, EmptyStreamError, open_decompressed
from monolith.data.records.framing import Framing, SampleFormat, better_framings, diagnosis
from monolith.data.records.records import Records
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from monolith.data.records.compression import ByteSource

RecordSource = str | os.PathLike[str] | BinaryIO
"""A path, a URL of fsspec, or an open binary file."""

MAX_RECORD_BYTES = 64 << 20
"""Default size limit of a record. Larger lengths usually mean damage or another framing."""

_CHUNK = 63 << 16
"""Bytes of a read: small enough to stay in a cache, large enough for all threads. With the rest of the previous chunk,
a record or two, it is a little less than four mebibytes, a size class that the core pools."""

_TRUNCATED, _LENGTH_CHECKSUM = 1, 4
"""Problems of a scan that need a word of their own, as the core numbers them."""


_Scan = tuple[Any, int, int, int, str, int]
"""Spans of records, end of the last one, bytes wanted from there on, problem, reason, and where to resume after it."""


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """How far a stream was read; stored in a checkpoint to resume from there."""

    offset: int = 0
    """Bytes of the uncompressed stream up to the next record."""
    records: int = 0
    """Records handed out before it."""

    def to_dict(self) -> dict[str, int]:
        """Returns the position as plain numbers."""
        return {"offset": self.offset, "records": self.records}

    @classmethod
    def from_dict(cls, values: Mapping[str, int]) -> Self:
        """Returns what :meth:`to_dict` gave."""
        return cls(**values)


class RecordReader(Closing):
    """Iterates over the records of one source as ``bytes``, or over blocks of them by :meth:`blocks`.

    A context manager that also closes its file at the end and on an error. Not thread-safe. Iterating again continues
    where the last iteration stopped.

    Args:
        source: The source to read.
        framing: Framing of each record.
        compression: Compression of the stream.
        sample: What the records hold. The start of a file is checked to be that under this framing;
            `SampleFormat.PLAINTEXT` takes any bytes, and a wrong framing is then found only when it breaks.
        start: Where to resume; uncompressed files are not read before it, compressed ones are.
        max_record_bytes: Longer records are bad.
        bad: Counts bad records, and limits how many may be skipped.
    """

    def __init__(
        self,
        source: RecordSource,
        framing: Framing | str = Framing.PLAIN,
        *,
        compression: Compression | str = Compression.FROM_NAME,
        sample: SampleFormat | str = SampleFormat.EXAMPLE,
        start: RecordPosition | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        bad: BadRecords | None = None,
    ) -> None:
        self.framing = Framing.of(framing)
        self.sample = SampleFormat.of(sample)
        self.bad = BadRecords() if bad is None else bad
        self.position = RecordPosition() if start is None else start
        self.origin = f"file '{_name_of(source)}'"
        if not 0 < max_record_bytes < 1 << 31:
            raise InvalidArgumentError(f"max_record_bytes must be from 1 to 2^31 - 1, got {max_record_bytes}")
        self._max_record_bytes = max_record_bytes
        self._compression = Compression.of(compression).resolve(_name_of(source))
        self._owned, self._raw = _open(source)
        self._stream: ByteSource = open_decompressed(self._raw, self._compression)
        self._is_live = _is_live(self._raw)
        self._descriptor = _descriptor_of(self._raw) if self._stream is self._raw else None
        self._buffer = np.empty(0, dtype=np.uint8)
        self._begin = 0
        self._base = 0
        self._at_end = False
        self._is_done = False
        self._is_searching = False
        try:
            self._check_start()
            self._go_to(self.position.offset)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file, if it was opened here."""
        if self._owned:
            self._raw.close()

    def __iter__(self) -> Iterator[bytes]:
        for block in self._scan_blocks():
            ends = (block.spans[::2] + block.spans[1::2] + (block.base + self.framing.tail)).tolist()
            for record, end in zip(block, ends, strict=True):
                # Before the yield: a position saved while a record is processed includes that record.
                self.position = RecordPosition(end, self.position.records + 1)
                yield record

    def blocks(self) -> Iterator[Records]:
        """Yields the records in blocks of about four mebibytes, without a copy of each."""
        for block in self._scan_blocks():
            end = block.base + int(block.spans[-2] + block.spans[-1]) + self.framing.tail
            self.position = RecordPosition(end, self.position.records + len(block))
            yield replace(block, has_source_keys=True) if self.framing is Framing.LAGRANGEX else block

    def _scan_blocks(self) -> Iterator[Records]:
        if self._is_done:
            return
        try:
            yield from self._scan_on()
        except DataLossError:
            self.close()
            raise
        self._is_done = True
        self.close()

    def _scan_on(self) -> Iterator[Records]:
        # An abandoned iterator may have read ahead of the position.
        if self._base + self._begin != self.position.offset:
            self._go_to(self.position.offset)
        scan = self._scan_buffer()
        while True:
            spans, consumed, num_bytes, problem, reason, resume = scan
            buffer, base = self._buffer, self._base
            self._begin = consumed
            if len(spans):
                self._is_searching = False
                yield Records(buffer, spans, self.origin, base)
            if not problem:
                if not num_bytes:
                    return
                scan = self._read_and_scan(num_bytes)
                continue
            if self._is_searching:
                # What looked like a head was not one: eight bytes and their checksum stand in some payloads, too.
                self._find_tfrecord()
            else:
                self._leave_out(problem, reason, base + resume)
            scan = self._scan_buffer()

    def _scan_buffer(self) -> _Scan:
        return _core.scan_frames(
            self._buffer,
            self._begin,
            framing=self.framing.value,
            at_end=self._at_end,
            max_record_bytes=self._max_record_bytes,
            max_records=1 << 62,
        )

    def _read_and_scan(self, num_bytes: int) -> _Scan:
        """Reads like `_read_more`, and scans the buffered bytes; of a plain file in one pass."""
        if self._descriptor is None:
            self._read_more(num_bytes)
            return self._scan_buffer()
        start, kept, _, size = self._plan_read(num_bytes)
        buffer, scan = _core.read_frames(
            self._descriptor,
            start + len(kept),
            kept,
            size,
            framing=self.framing.value,
            max_record_bytes=self._max_record_bytes,
        )
        self._base, self._begin, self._buffer, self._at_end = start, 0, buffer, len(buffer) < size
        return scan

    def _leave_out(self, problem: int, reason: str, resume: int) -> None:
        """Counts a bad record and finds the next one; raises if the record may not be skipped."""
        at = self._base + self._begin
        text = f"{self.origin}: offset {at}: {reason}"
        if at == 0 and problem != _TRUNCATED:
            text += f"; {diagnosis(self._buffer, self.framing, self.sample, at_end=self._at_end)}"
        self.bad.add(text)
        if problem == _LENGTH_CHECKSUM:
            self._find_tfrecord()
        elif resume == at:
            lost = self._drain()
            self.bad.add(f"{self.origin}: offset {at}: the {lost} bytes from here on cannot be split into records")
        elif not self._forward_to(resume) and problem != _TRUNCATED:
            self.bad.add(f"{self.origin}: offset {at}: a record reaches beyond the end of the stream (truncated)")

    def _find_tfrecord(self) -> None:
        """Seeks the next possible header of a record, after one that is corrupt."""
        self._is_searching = True
        self._begin += 1
        while True:
            self._begin = _core.find_tfrecord(self._buffer, self._begin)
            if self._begin + 12 <= len(self._buffer):
                return
            if self._at_end:
                self._begin = len(self._buffer)
                return
            self._read_more(12)

    def _drain(self) -> int:
        lost = len(self._buffer) - self._begin
        self._begin = len(self._buffer)
        while not self._at_end:
            self._read_more(1)
            lost += len(self._buffer)
            self._begin = len(self._buffer)
        return lost

    def _forward_to(self, offset: int) -> bool:
        """Drops bytes up to this offset of the stream; False when the stream ends before."""
        while self._base + len(self._buffer) < offset and not self._at_end:
            self._begin = len(self._buffer)
            self._read_more(1)
        self._begin = min(len(self._buffer), offset - self._base)
        return self._base + len(self._buffer) >= offset

    def _go_to(self, offset: int) -> None:
        if offset < self._base:
            self._rewind()
        is_plain = self._compression is Compression.NONE and self._raw.seekable()
        if is_plain and offset > self._base + len(self._buffer):
            self._at_end = False
            size = self._raw.seek(0, os.SEEK_END)
            self._base, self._begin, self._buffer = self._raw.seek(min(offset, size)), 0, self._buffer[:0]
        if not self._forward_to(offset):
            raise DataLossError(
                f"{self.origin}: offset {offset} to resume from is past the end, "
                f"{self._base + len(self._buffer)}; the file is not the one that was read before"
            )

    def _rewind(self) -> None:
        if not self._raw.seekable():
            raise InvalidArgumentError(f"{self.origin}: cannot go back in a stream that does not seek")
        self._raw.seek(0)
        self._stream = open_decompressed(self._raw, self._compression)
        self._buffer, self._begin, self._base, self._at_end = self._buffer[:0], 0, 0, False

    def _read_more(self, num_bytes: int) -> None:
        """Reads until `num_bytes` bytes from `_begin` on are buffered, or the stream ends."""
        start, kept, needed, size = self._plan_read(num_bytes)
        buffer = _core.take_chunk(size)  # another one each time: blocks that were handed out keep theirs
        buffer[: len(kept)] = kept
        end = len(kept)
        while end < (needed if self._is_live else size) and not self._at_end:
            got = self._read_into(buffer[end:], start + end)
            self._at_end = got == 0
            end += got
        self._base, self._begin, self._buffer = start, 0, buffer[:end]

    def _plan_read(self, num_bytes: int) -> tuple[int, npt.NDArray[np.uint8], int, int]:
        """Returns the start of the next buffer, its already buffered first bytes, and its minimum and maximum size."""
        kept = self._buffer[self._begin :]
        needed = max(num_bytes, len(kept) + 1)
        # Reads end at multiples of the chunk: where blocks are cut depends on the stream, not on where reading began.
        start = self._base + self._begin
        return start, kept, needed, -(-(start + needed) // _CHUNK) * _CHUNK - start

    def _read_into(self, target: npt.NDArray[np.uint8], offset: int) -> int:
        """Reads at most as many bytes as fit; `offset` is where they stand in the uncompressed stream."""
        try:
            if self._descriptor is not None:
                return _core.read_file(self._descriptor, offset, target)
            if self._stream is self._raw:
                return self._raw.readinto(target.data) or 0  # type: ignore[attr-defined]  # every binary file has it
            piece = self._stream.read(len(target))
        except EmptyStreamError as error:
            # No readable data follows, so it may be skipped like one record.
            self.bad.add(f"{self.origin}: {error}")
            return 0
        except DataLossError as error:
            raise DataLossError(f"{self.origin}: offset {offset} of the uncompressed stream: {error}") from error
        target.data[: len(piece)] = piece
        return len(piece)

    def _check_start(self) -> None:
        if self.position.offset:
            return
        self._read_more(_CHUNK // 2)
        if better := better_framings(self._buffer, self.framing, self.sample, at_end=self._at_end):
            names = " or ".join(other.name for other in better)
            raise DataLossError(
                f"{self.origin}: offset 0: not {self.sample.name} records of framing {self.framing.name}; "
                f"the start of the file fits {names}"
            )


def read_examples(
    source: RecordSource, framing: Framing | str = Framing.PLAIN, *, start: RecordPosition | None = None, **options: Any
) -> RecordReader:
    """Returns the records of a source, one ``bytes`` each; options are those of `RecordReader`.

    Its `position` after any record can be saved, and passed as `start` to resume after that record.
    """
    return RecordReader(source, framing, start=start, **options)


def split_records(
    payload: bytes,
    framing: Framing | str = Framing.PLAIN,
    *,
    origin: str = "payload",
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Records:
    """Returns the records of a byte string that holds any number of them, such as a Kafka message.

    Raises:
        DataLossError: the bytes are not records of this framing from the first to the last.
    """
    framing = Framing.of(framing)
    buffer = np.frombuffer(payload, dtype=np.uint8)
    spans, consumed, _, problem, reason, _ = _core.scan_frames(
        buffer, 0, framing=framing.value, at_end=True, max_record_bytes=max_record_bytes, max_records=1 << 62
    )
    if problem:
        raise DataLossError(f"{origin}: offset {consumed}: {reason}; is {framing.name} its framing?")
    return Records(buffer, spans, origin, has_source_keys=framing is Framing.LAGRANGEX)


def _name_of(source: RecordSource) -> str:
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    for attribute in ("full_name", "name", "path"):  # the first is that of fsspec's files, with the protocol
        if isinstance(name := getattr(source, attribute, None), str):
            return name
    return "stream"


def _descriptor_of(file: Any) -> int | None:
    """Returns the descriptor of a plain file that is read from its start, which the core reads on all threads."""
    is_plain = isinstance(file, io.FileIO) and file.seekable() and file.tell() == 0
    return file.fileno() if is_plain else None


def _is_live(file: Any) -> bool:
    """Returns whether a file is a pipe or a socket, whose data must be yielded as soon as it arrives."""
    return isinstance(file, io.IOBase) and hasattr(file, "fileno") and not file.seekable()


def _open(source: RecordSource) -> tuple[bool, Any]:
    """Returns whether the file is ours to close, and the file."""
    if not isinstance(source, str | os.PathLike):
        return False, source
    path = os.fspath(source)
    try:
        return True, fsspec.open(path, "rb").open() if "://" in path else Path(path).open("rb", buffering=0)
    except FileNotFoundError as error:
        raise NotFoundError(f"file '{path}': there is no such file") from error
