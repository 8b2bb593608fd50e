"""Reads the segment files of a part in order."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from monolith.deltalog.transports.file_lineage import NO_END, GenerationChain
from monolith.deltalog.transports.file_segments import (
    NOTHING,
    SegmentChunk,
    SegmentFile,
    first_head,
    is_damaged_at_start,
    next_whole,
    piece_at,
    segments_in,
)
from monolith.errors import DataLossError
from monolith.files import named_errors

if TYPE_CHECKING:
    import threading
    from pathlib import Path

POLL_SECONDS = 0.01


class FileTail:
    """`monolith.deltalog.transport.Tail` over segment files.

    Args:
        folder: Folder of the part; it may be created later.
        number: The first number to read; None: the first that exists.
    """

    def __init__(self, folder: Path, number: int | None) -> None:
        self._folder = folder
        self._start = number
        self._lineage = GenerationChain(folder)
        self._segment: SegmentFile | None = None
        self._descriptor: int | None = None
        self._offset = 0
        self._size = 0
        """Size of the segment when it was last read."""
        self._next: int | None = None
        """Number after that of the last returned record."""
        self._handed: tuple[Path, int] | None = None
        """File and offset of the last returned bytes."""

    def next(self) -> bytes | None:
        """Returns the next record once it is settled: written before another writer took the part. None: not yet."""
        with named_errors(str(self._folder), "read"):
            while self._segment is not None or self._begin():
                piece, later, end = self._look()
                if self._was_taken_back(piece):
                    self.close()
                    continue
                if self._is_settled(piece, later, end):
                    return self._hand_out(piece)
                if not piece.is_whole and not later:
                    return None if piece.may_come else self._hand_over(piece)
                if self._is_damage(piece, later, end):
                    return self._hand_over(piece)
                if not self._enter_next(later, end):
                    return None
        return None

    @property
    def where(self) -> str:
        """File and offset of the last returned bytes."""
        return "" if self._handed is None else f"file '{self._handed[0]}', offset {self._handed[1]}"

    def skip(self) -> None:
        """Moves to the next intact record of the segment."""
        if self._descriptor is None:
            return
        with named_errors(str(self._folder), "read"):
            following = next_whole(self._descriptor, self._offset, self._segment_or_fail)
            self._offset = os.fstat(self._descriptor).st_size if following is None else following

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Waits for more bytes by polling the file size."""
        waited = 0.0
        while waited < seconds and not stop.wait(min(POLL_SECONDS, seconds - waited)):
            waited += POLL_SECONDS
            if self._descriptor is None or os.fstat(self._descriptor).st_size != self._size or self._later():
                return

    def bytes_behind(self) -> int:
        """Returns the total size of this and later segments, less what was read of this one."""
        sizes = 0
        for segment in segments_in(self._folder):
            if self._segment is None or segment >= self._segment:
                try:
                    size = (self._folder / segment.name).stat().st_size
                except FileNotFoundError:
                    continue
                sizes += max(0, size - self._offset) if segment == self._segment else size
        return sizes

    def unread_bytes(self) -> int:
        """Returns the bytes of the segment from here on; with no record left, those of an unfinished or damaged one."""
        return 0 if self._descriptor is None else max(0, os.fstat(self._descriptor).st_size - self._offset)

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._segment = None

    # Internals

    @property
    def _segment_or_fail(self) -> SegmentFile:
        assert self._segment is not None  # noqa: S101 - a piece was read from it
        return self._segment

    def _begin(self) -> bool:
        """Enters the last segment that certainly counts and whose first number is not above the next one.

        Without such a segment, enters the first one, even if it has no record yet. Returns False if there is no
        segment.
        """
        number = self._start if self._next is None else self._next
        segments = segments_in(self._folder)
        if not segments:
            return False
        try:
            self._enter(segments[0] if number is None else self._last_before(number, segments))
        except FileNotFoundError:
            return False  # trimmed meanwhile
        if number is not None:
            self._skip_below(number)
        return self._segment is not None

    def _skip_below(self, number: int) -> None:
        """Moves to a number or the first one above it, or to damage that may have held it."""
        while True:
            piece = self._piece()
            if piece.is_damaged and not self._skip_damage_below(piece, number):
                return
            if not piece.is_damaged:
                if not piece.is_whole or piece.head is None or piece.head.number >= number:
                    return
                self._next = piece.head.number + 1
                self._offset += len(piece.data)

    def _skip_damage_below(self, piece: SegmentChunk, number: int) -> bool:
        """Moves past a damaged record if its number is certainly below `number`. Returns whether it moved."""
        before = self._offset
        self.skip()
        following = self._piece().head
        if following is not None and following.number <= number:
            return True
        is_own = piece.head is not None and piece.head.generation == self._segment_or_fail.generation
        if following is None and is_own and piece.head is not None and piece.head.number < number:
            return True
        self._offset = before
        return False

    def _last_before(self, number: int, segments: list[SegmentFile]) -> SegmentFile:
        for segment in reversed(segments):
            head = first_head(self._folder, segment)
            if head is not None and head.number <= number and self._lineage.surely_counts(segment, head.number):
                return segment
        return segments[0]

    def _piece(self) -> SegmentChunk:
        if self._descriptor is None:
            return NOTHING
        self._size = os.fstat(self._descriptor).st_size
        return piece_at(self._descriptor, self._offset, segment=self._segment_or_fail)

    def _look(self) -> tuple[SegmentChunk, list[SegmentFile], int | None]:
        """Returns the piece here, the later segments, and the end of this generation, or None if undecided.

        Segments are listed after a record was read: a record written after a new segment appeared may not count. If
        there is no record but there are later segments, the piece is read again after listing them: by then every
        record of this segment that counts is written.
        """
        while True:
            piece, later = self._piece(), self._later()
            end = self._end(later)
            if piece.is_whole or not later:
                return piece, later, end
            later, piece = self._later(), self._piece()
            if later and not piece.is_whole:
                return piece, later, end

    def _end(self, later: list[SegmentFile]) -> int | None:
        own = self._segment_or_fail.generation
        return NO_END if not later or later[0].generation == own else self._lineage.end_of(own)

    def _was_taken_back(self, piece: SegmentChunk) -> bool:
        """Returns whether this empty segment was removed by its writer, which failed to open the part."""
        if self._descriptor is None or self._offset or piece.data:
            return False
        return os.fstat(self._descriptor).st_nlink == 0

    def _hand_over(self, piece: SegmentChunk) -> bytes:
        """Returns the bytes here, whether they are a record or not, without advancing.

        Raises:
            DataLossError: they are a record of another segment.
        """
        segment = self._segment_or_fail
        self._handed = (self._folder / segment.name, self._offset)
        if piece.head is not None and piece.head.generation != segment.generation:
            raise DataLossError(
                f"{self.where}: a record of generation {segment.generation} expected, got one of generation"
                f" {piece.head.generation} (the file was copied or renamed); resume from a later base"
            )
        return piece.data

    def _hand_out(self, piece: SegmentChunk) -> bytes:
        self._hand_over(piece)
        self._offset += len(piece.data)
        if piece.head is not None:
            self._next = piece.head.number + 1
        return piece.data

    def _is_settled(self, piece: SegmentChunk, later: list[SegmentFile], end: int | None) -> bool:
        """Returns whether this record is part of the log for good, whatever writers do from now on."""
        if not piece.is_whole or piece.head is None:
            return False
        if not later or later[0].generation == self._segment_or_fail.generation:
            return True
        if end is None:  # a pending opener has seen every record that has a successor
            return self._has_successor(piece)
        return piece.head.number < end

    def _has_successor(self, piece: SegmentChunk) -> bool:
        """Returns whether a record follows: then its writer had verified that it still owned the part."""
        assert self._descriptor is not None  # noqa: S101 - the piece was read from it
        behind = self._offset + len(piece.data)
        return piece_at(self._descriptor, behind, segment=self._segment_or_fail).is_whole

    def _is_damage(self, piece: SegmentChunk, later: list[SegmentFile], end: int | None) -> bool:
        """Returns whether records are missing here that others follow. The torn end of a killed writer is no damage."""
        if piece.is_whole or not piece.data:
            return False
        if later[0].generation == self._segment_or_fail.generation:
            return True
        if end is None:
            return piece.is_damaged
        return (self._next or 0) < end < NO_END

    def _later(self) -> list[SegmentFile]:
        """Returns the later segments; only the next one if it is of the same generation, without a listing."""
        if self._segment is None:
            return []
        following = SegmentFile(self._segment.generation, self._segment.place + 1)
        if (self._folder / following.name).exists():
            return [following]
        return [segment for segment in segments_in(self._folder) if segment > self._segment]

    def _enter_next(self, later: list[SegmentFile], end: int | None) -> bool:
        """Enters the next segment of this generation or, once it is decided how far this one counts, of a newer one.

        A newer one without an opening belongs to a writer that died or is opening the part. One whose opening is
        damaged is entered if nothing else decides how far this one counts.
        """
        following: SegmentFile | None = later[0]
        if later[0].generation != self._segment_or_fail.generation:
            is_next = is_damaged_at_start if end is None else first_head
            following = (
                None if end == NO_END else next((segment for segment in later if is_next(self._folder, segment)), None)
            )
        if following is None:
            return False
        with contextlib.suppress(FileNotFoundError):  # trimmed; the next call lists the segments again
            self._enter(following)
        return True

    def _enter(self, segment: SegmentFile) -> None:
        self.close()
        self._descriptor = os.open(self._folder / segment.name, os.O_RDONLY)
        self._segment, self._offset = segment, 0
