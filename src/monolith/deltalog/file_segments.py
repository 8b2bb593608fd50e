"""The segment files of one part of a log on this machine: their names, their order, and what is in one.

A segment is records end to end. Its name tells generation and place in it, ``00000003-000001.log``. The first record of
the first segment of a generation is its opening.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith.deltalog.increment import HEAD, MAGIC, Head, check_sum, read_head
from monolith.errors import DataLossError
from monolith.files import named_errors

if TYPE_CHECKING:
    from pathlib import Path

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
    """True iff it is a record with the right checksum."""
    may_come: bool
    """True iff it may be a record that is being written: it ends too early, or with nothing but zeros."""


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
    """Of the first record; None where it is not written yet, or the file has gone."""
    try:
        with (folder / segment.name).open("rb") as file:
            return read_head(file.read(HEAD.size), origin=segment.name)
    except (FileNotFoundError, DataLossError):
        return None


def piece_at(descriptor: int, offset: int, *, origin: str) -> Piece:
    """What is at an offset of an open segment; no more is read than the file has."""
    head_bytes = os.pread(descriptor, HEAD.size, offset)
    if not head_bytes:
        return NOTHING
    try:
        head = read_head(head_bytes, origin=origin)
    except DataLossError:
        return Piece(None, head_bytes, is_whole=False, may_come=_ends_early(descriptor, offset, head_bytes))
    if os.fstat(descriptor).st_size < offset + head.record_bytes:
        return Piece(head, head_bytes, is_whole=False, may_come=True)
    data = _pread(descriptor, head.record_bytes, offset)
    try:
        check_sum(data, head, origin=origin)
    except DataLossError:
        return Piece(head, data, is_whole=False, may_come=len(data) < head.record_bytes)
    return Piece(head, data, is_whole=True, may_come=False)


def next_magic(descriptor: int, offset: int) -> int:
    """Where the next record may begin, from an offset on; the end of the file where none does."""
    while data := os.pread(descriptor, 1 << 20, offset):
        words = np.frombuffer(data[: len(data) // 8 * 8], "<u4")[::2]
        found = np.flatnonzero(words == MAGIC)
        if len(found):
            return offset + 8 * int(found[0])
        offset += len(data)
    return offset


class LastRecord(NamedTuple):
    """The last whole record of a part, as it was found: who looks again begins there."""

    segment: Segment
    offset: int
    head: Head


def last_record(folder: Path, segments: list[Segment], known: LastRecord | None = None) -> LastRecord | None:
    """The last whole record of some segments in order; None where there is none.

    Args:
        folder: Of the part.
        segments: In order.
        known: What was found before: of its segment only what came since is read, if it is still there.
    """
    for segment in reversed(segments):
        try:
            descriptor = os.open(folder / segment.name, os.O_RDONLY)
        except FileNotFoundError:
            continue  # somebody who could not open the part has taken it away again
        try:
            found = known if known is not None and known.segment == segment and _is_there(descriptor, known) else None
            offset = 0 if found is None else found.offset + found.head.record_bytes
            while (piece := piece_at(descriptor, offset, origin=segment.name)).is_whole and piece.head is not None:
                found = LastRecord(segment, offset, piece.head)
                offset += len(piece.data)
        finally:
            os.close(descriptor)
        if found is not None:
            return found
    return None


def _is_there(descriptor: int, record: LastRecord) -> bool:
    """Whether a record that was whole is where it was: nobody has cut the file off and written another one."""
    try:
        head = read_head(os.pread(descriptor, HEAD.size, record.offset), origin=record.segment.name)
    except DataLossError:
        return False
    return head == record.head and os.fstat(descriptor).st_size >= record.offset + head.record_bytes


def _ends_early(descriptor: int, offset: int, head_bytes: bytes) -> bool:
    """Whether a file ends within a head, or goes on with zeros to its end.

    A file system that has lost its power may have made room for a record that it has not written.
    """
    if len(head_bytes) < HEAD.size:
        return True
    while data := os.pread(descriptor, 1 << 20, offset):
        if any(data):
            return False
        offset += len(data)
    return True


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    """All of it, as far as the file goes: one call reads at most 2 GiB, and may read less."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data
