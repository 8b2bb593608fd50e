"""The segment files of one part of a log on this machine: their names, their order, and what is in one.

A segment is records end to end. Its name tells generation and place in it, ``00000003-000001.log``. The first record of
the first segment of a generation is its opening.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith.deltalog.increment import HEAD, MAGIC, TAIL, Head, check_sum, read_head
from monolith.errors import DataLossError
from monolith.files import named_errors

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC_BYTES = MAGIC.to_bytes(4, "little")
_NAME = re.compile(r"(\d{8})-(\d{6})\.log")


class Segment(NamedTuple):
    """A segment file; they sort in the order of their records."""

    generation: int
    place: int
    """Among the segments of its generation."""

    @property
    def name(self) -> str:
        """Of the file."""
        return f"{self.generation:08d}-{self.place:06d}.log"


class Piece(NamedTuple):
    """What a segment has at an offset."""

    head: Head | None
    """None: no good head."""
    data: bytes
    """The record, or whatever is there instead."""
    is_whole: bool
    """True iff it is a record with the right checksum, of the generation of its segment."""
    may_come: bool
    """True iff it may be a record that is being written: the file ends within it, or has only zeros from here on."""

    @property
    def is_damaged(self) -> bool:
        """Whether a record was written here and cannot be read any more."""
        return not self.is_whole and not self.may_come


NOTHING = Piece(None, b"", is_whole=False, may_come=True)


def segments_in(folder: Path) -> list[Segment]:
    """The segments of a part, in order; none where there is no folder."""
    with named_errors(str(folder), "listed"):
        try:
            names = os.listdir(folder)  # noqa: PTH208 - half the time of Path.iterdir, and it is asked at every append
        except FileNotFoundError:
            return []
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(Segment(int(found[1]), int(found[2])) for found in matches if found)


def first_head(folder: Path, segment: Segment) -> Head | None:
    """Of the first record; None where it is not written yet, its head is damaged or foreign, or the file has gone."""
    try:
        with (folder / segment.name).open("rb") as file:
            head = read_head(file.read(HEAD.size), origin=segment.name)
    except (FileNotFoundError, DataLossError):
        return None
    return head if head.generation == segment.generation else None


def is_damaged_at_start(folder: Path, segment: Segment) -> bool:
    """Whether the first record of a segment was written and cannot be read any more."""
    try:
        descriptor = os.open(folder / segment.name, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return piece_at(descriptor, 0, segment=segment).is_damaged
    finally:
        os.close(descriptor)


def piece_at(descriptor: int, offset: int, *, segment: Segment) -> Piece:
    """What is at an offset of an open segment; no more is read than the file has."""
    head_bytes = os.pread(descriptor, HEAD.size, offset)
    if not head_bytes:
        return NOTHING
    try:
        head = read_head(head_bytes, origin=segment.name)
    except DataLossError:
        return Piece(None, head_bytes, is_whole=False, may_come=_ends_early(descriptor, offset, head_bytes))
    if head.generation != segment.generation:
        return Piece(head, head_bytes, is_whole=False, may_come=False)
    if os.fstat(descriptor).st_size < offset + head.record_bytes:
        # A record that others follow is not being written: the file has lost bytes of it.
        may_come = next_whole(descriptor, offset, segment) is None
        return Piece(head, head_bytes, is_whole=False, may_come=may_come)
    data = _pread(descriptor, head.record_bytes, offset)
    if _has_checksum(data, head):
        return Piece(head, data, is_whole=True, may_come=False)
    # After a power failure the last record may have its room and not its end.
    is_last = os.fstat(descriptor).st_size <= offset + head.record_bytes
    return Piece(head, data, is_whole=False, may_come=is_last and not any(data[-TAIL.size :]))


def next_magic(descriptor: int, offset: int) -> int:
    """Where the next record may begin, from an offset on; the end of the file where none does."""
    while data := os.pread(descriptor, 1 << 20, offset):
        words = np.frombuffer(data[: len(data) // 8 * 8], "<u4")[::2]
        found = np.flatnonzero(words == MAGIC)
        if len(found):
            return offset + 8 * int(found[0])
        offset += len(data)
    return offset


def next_whole(descriptor: int, offset: int, segment: Segment) -> int | None:
    """Offset of the next whole record behind one that cannot be read; None: there is none."""
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
    """The last record of a part, as it was found: a later search starts there."""

    segment: Segment
    offset: int
    head: Head


def last_record(folder: Path, segments: list[Segment], known: LastRecord | None = None) -> LastRecord | None:
    """The last record of some segments in order; None where there is none.

    A damaged record counts: it was written, so its number is taken. An unfinished one does not.

    Args:
        folder: Of the part.
        segments: In order.
        known: What was found before: of its segment only what came since is read, if it is still there.
    """
    for segment in reversed(segments):
        try:
            descriptor = os.open(folder / segment.name, os.O_RDONLY)
        except FileNotFoundError:
            continue  # a writer that could not open the part has removed it
        try:
            found = known if known is not None and known.segment == segment and _is_there(descriptor, known) else None
            found = _last_in(descriptor, segment, found)
        finally:
            os.close(descriptor)
        if found is not None:
            return found
    return None


def _last_in(descriptor: int, segment: Segment, found: LastRecord | None) -> LastRecord | None:
    """The last record of one segment, behind one that is known."""
    offset = 0 if found is None else found.offset + found.head.record_bytes
    while True:
        piece = piece_at(descriptor, offset, segment=segment)
        if piece.is_whole and piece.head is not None:
            found = LastRecord(segment, offset, piece.head)
            offset += len(piece.data)
            continue
        following = next_whole(descriptor, offset, segment) if piece.is_damaged else None
        if following is None:
            return _with_damaged(found, piece) if piece.is_damaged else found
        offset = following


def _with_damaged(found: LastRecord | None, piece: Piece) -> LastRecord | None:
    """Counts a damaged record behind the last whole one; one without a readable head has at least the next number."""
    if found is None:
        return None
    number = found.head.number + 1
    if piece.head is not None and piece.head.generation == found.head.generation:
        number = max(number, piece.head.number)
    return found._replace(head=found.head._replace(number=number))


def _is_there(descriptor: int, record: LastRecord) -> bool:
    """Whether a record that was whole is where it was: nobody has cut the file off and written another one."""
    try:
        head = read_head(os.pread(descriptor, HEAD.size, record.offset), origin=record.segment.name)
    except DataLossError:
        return False
    return head == record.head and os.fstat(descriptor).st_size >= record.offset + head.record_bytes


def _ends_early(descriptor: int, offset: int, head_bytes: bytes) -> bool:
    """Whether a file ends within a head, or has only zeros from somewhere in it up to its end.

    After a power failure a file may have room for a record that was not written, or not to its end.
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


def _has_checksum(data: bytes, head: Head) -> bool:
    try:
        check_sum(data, head, origin="")
    except DataLossError:
        return False
    return True


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    """All of it, as far as the file goes: one call reads at most 2 GiB, and may read less."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data
