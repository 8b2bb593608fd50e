"""The segment files of one part of a log in a folder: names, order and contents.

A segment is a sequence of records without padding between them. Its name holds the generation and the index of the
segment in it, such as ``00000003-000001.log``. The first record of the first segment of a generation is its opening.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith.deltalog.increment import HEAD, MAGIC, TAIL, RecordHeader, check_sum, read_head
from monolith.errors import DataLossError
from monolith.files import named_errors

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC_BYTES = MAGIC.to_bytes(4, "little")
_NAME = re.compile(r"(\d{8})-(\d{6})\.log")


class SegmentFile(NamedTuple):
    """A segment file. Segments sort in the order of their records."""

    generation: int
    place: int
    """Index among the segments of its generation."""

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.generation:08d}-{self.place:06d}.log"


class SegmentChunk(NamedTuple):
    """The contents of a segment at an offset."""

    head: RecordHeader | None
    """None: no valid head."""
    data: bytes
    """The record, or the bytes found instead."""
    is_whole: bool
    """True iff it is a record with a valid checksum, of the generation of its segment."""
    may_come: bool
    """True iff a record may still be being written here: the file ends within it, or holds only zeros from here on."""

    @property
    def is_damaged(self) -> bool:
        """Whether a record was written here and is no longer readable."""
        return not self.is_whole and not self.may_come


NOTHING = SegmentChunk(None, b"", is_whole=False, may_come=True)


def segments_in(folder: Path) -> list[SegmentFile]:
    """Returns the segments of a part, in order; none if the folder does not exist."""
    with named_errors(str(folder), "listed"):
        try:
            names = os.listdir(folder)  # noqa: PTH208 - twice as fast as Path.iterdir, and called at every append
        except FileNotFoundError:
            return []
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(SegmentFile(int(match[1]), int(match[2])) for match in matches if match)


def first_head(folder: Path, segment: SegmentFile) -> RecordHeader | None:
    """Returns the head of the first record; None if not written yet, damaged or foreign, or if the file was removed."""
    try:
        with (folder / segment.name).open("rb") as file:
            head = read_head(file.read(HEAD.size), origin=segment.name)
    except (FileNotFoundError, DataLossError):
        return None
    return head if head.generation == segment.generation else None


def is_damaged_at_start(folder: Path, segment: SegmentFile) -> bool:
    """Returns whether the first record of a segment was written and is no longer readable."""
    try:
        descriptor = os.open(folder / segment.name, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return piece_at(descriptor, 0, segment=segment).is_damaged
    finally:
        os.close(descriptor)


def piece_at(descriptor: int, offset: int, *, segment: SegmentFile) -> SegmentChunk:
    """Reads the piece at an offset of an open segment, never past the end of the file."""
    head_bytes = os.pread(descriptor, HEAD.size, offset)
    if not head_bytes:
        return NOTHING
    try:
        head = read_head(head_bytes, origin=segment.name)
    except DataLossError:
        return SegmentChunk(None, head_bytes, is_whole=False, may_come=_ends_early(descriptor, offset, head_bytes))
    if head.generation != segment.generation:
        return SegmentChunk(head, head_bytes, is_whole=False, may_come=False)
    if os.fstat(descriptor).st_size < offset + head.record_bytes:
        # A record with successors is complete, so this one has lost bytes.
        may_come = next_whole(descriptor, offset, segment) is None
        return SegmentChunk(head, head_bytes, is_whole=False, may_come=may_come)
    data = _pread(descriptor, head.record_bytes, offset)
    if _has_checksum(data, head):
        return SegmentChunk(head, data, is_whole=True, may_come=False)
    # After a power failure the file may have the length of the last record but not its end.
    is_last = os.fstat(descriptor).st_size <= offset + head.record_bytes
    return SegmentChunk(head, data, is_whole=False, may_come=is_last and not any(data[-TAIL.size :]))


def next_magic(descriptor: int, offset: int) -> int:
    """Returns where the next record may begin, at or after an offset; the end of the file if there is none."""
    while data := os.pread(descriptor, 1 << 20, offset):
        words = np.frombuffer(data[: len(data) // 8 * 8], "<u4")[::2]
        hits = np.flatnonzero(words == MAGIC)
        if len(hits):
            return offset + 8 * int(hits[0])
        offset += len(data)
    return offset


def next_whole(descriptor: int, offset: int, segment: SegmentFile) -> int | None:
    """Returns the offset of the next intact record after an unreadable one, or None."""
    size = os.fstat(descriptor).st_size
    while (offset := next_magic(descriptor, offset + 8)) < size:
        try:
            head = read_head(os.pread(descriptor, HEAD.size, offset), origin=segment.name)
        except DataLossError:
            continue
        fits = head.generation == segment.generation and offset + head.record_bytes <= size
        if fits and _has_checksum(_pread(descriptor, head.record_bytes, offset), head):
            return offset
    return None


class LastRecord(NamedTuple):
    """The last record of a part. A later search starts there."""

    segment: SegmentFile
    offset: int
    head: RecordHeader


def last_record(folder: Path, segments: list[SegmentFile], known: LastRecord | None = None) -> LastRecord | None:
    """Returns the last record of the given segments, or None.

    A damaged record counts: it was written, so its number is used. An unfinished one does not.

    Args:
        folder: Folder of the part.
        segments: The segments, in order.
        known: The result of an earlier call; if that record is still in place, only what follows it is read.
    """
    for segment in reversed(segments):
        try:
            descriptor = os.open(folder / segment.name, os.O_RDONLY)
        except FileNotFoundError:
            continue  # removed by a writer that failed to open the part
        try:
            record = known if known is not None and known.segment == segment and _is_there(descriptor, known) else None
            record = _last_in(descriptor, segment, record)
        finally:
            os.close(descriptor)
        if record is not None:
            return record
    return None


def _last_in(descriptor: int, segment: SegmentFile, record: LastRecord | None) -> LastRecord | None:
    """Returns the last record of one segment, searching after `record` if it is not None."""
    offset = 0 if record is None else record.offset + record.head.record_bytes
    while True:
        piece = piece_at(descriptor, offset, segment=segment)
        if piece.is_whole and piece.head is not None:
            record = LastRecord(segment, offset, piece.head)
            offset += len(piece.data)
            continue
        following = next_whole(descriptor, offset, segment) if piece.is_damaged else None
        if following is None:
            return _with_damaged(record, piece) if piece.is_damaged else record
        offset = following


def _with_damaged(record: LastRecord | None, piece: SegmentChunk) -> LastRecord | None:
    """Counts a damaged record after the last intact one; without a readable head it has at least the next number."""
    if record is None:
        return None
    number = record.head.number + 1
    if piece.head is not None and piece.head.generation == record.head.generation:
        number = max(number, piece.head.number)
    return record._replace(head=record.head._replace(number=number))


def _is_there(descriptor: int, record: LastRecord) -> bool:
    """Returns whether a record found earlier is still in place: the file was not truncated and rewritten."""
    try:
        head = read_head(os.pread(descriptor, HEAD.size, record.offset), origin=record.segment.name)
    except DataLossError:
        return False
    return head == record.head and os.fstat(descriptor).st_size >= record.offset + head.record_bytes


def _ends_early(descriptor: int, offset: int, head_bytes: bytes) -> bool:
    """Returns whether the file ends within a head, or holds only zeros from some byte of the head to its end.

    After a power failure a file may be extended for a record of which nothing, or only the beginning, was written.
    """
    start = head_bytes[: len(_MAGIC_BYTES)]
    if any(start) and not _MAGIC_BYTES.startswith(start):
        return False
    if len(head_bytes) < HEAD.size:
        return True
    offset += HEAD.size - TAIL.size
    while data := os.pread(descriptor, 1 << 20, offset):
        if any(data):
            return False
        offset += len(data)
    return True


def _has_checksum(data: bytes, head: RecordHeader) -> bool:
    try:
        check_sum(data, head, origin="")
    except DataLossError:
        return False
    return True


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    """Reads `size` bytes, or up to the end of the file. One `os.pread` reads at most 2 GiB and may read less."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data
