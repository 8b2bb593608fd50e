"""A place in the segment files of a part."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monolith.deltalog.file_lineage import NO_END, Lineage
from monolith.deltalog.file_segments import NOTHING, Piece, Segment, first_head, next_magic, piece_at, segments_in
from monolith.files import named_errors

if TYPE_CHECKING:
    import threading
    from pathlib import Path

POLL_SECONDS = 0.01


class FileTail:
    """`monolith.deltalog.transport.Tail` over segment files.

    Args:
        folder: Of the part; it may come later.
        number: The first number that is wanted; None: the first that is there.
    """

    def __init__(self, folder: Path, number: int | None) -> None:
        self._folder = folder
        self._wanted = number
        self._lineage = Lineage(folder)
        self._segment: Segment | None = None
        self._descriptor: int | None = None
        self._offset = 0
        self._next: int | None = None
        """Number behind the last record that was handed out."""
        self._suspect: bytes | None = None
        """What was at the end of the part and was not a record."""
        self._handed: tuple[Path, int] | None = None
        """File and offset of what was handed out last."""

    def next(self) -> bytes | None:
        """The next record, once it is known that it was written before anybody else took the part."""
        with named_errors(str(self._folder), "read"):
            while self._segment is not None or self._begin():
                piece, later, end = self._look()
                if self._was_taken_back(piece):
                    self.close()
                    continue
                if self._is_settled(piece, later, end):
                    return self._hand_out(piece)
                if not piece.is_whole and not later:
                    return self._at_end(piece)
                if self._is_damage(piece, later, end):
                    return self._hand_over(piece)
                if not self._enter_next(later, end):
                    return None
        return None

    @property
    def where(self) -> str:
        """File and offset."""
        return "" if self._handed is None else f"file '{self._handed[0]}', offset {self._handed[1]}"

    def skip(self) -> None:
        """Looks for the next whole record of the segment; records begin at multiples of 8."""
        if self._descriptor is None:
            return
        with named_errors(str(self._folder), "read"):
            size = os.fstat(self._descriptor).st_size
            self._offset += 8
            while self._offset < size and not self._piece().is_whole:
                self._offset = next_magic(self._descriptor, self._offset + 8)
        self._suspect = None

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Looks at the size of the file again and again."""
        waited = 0.0
        while waited < seconds and not stop.wait(min(POLL_SECONDS, seconds - waited)):
            waited += POLL_SECONDS
            if self._descriptor is None or os.fstat(self._descriptor).st_size != self._offset or self._later():
                return

    def bytes_behind(self) -> int:
        """The sizes of the segments, less what was read of this one."""
        sizes = 0
        for segment in segments_in(self._folder):
            if self._segment is None or segment >= self._segment:
                try:
                    size = (self._folder / segment.name).stat().st_size
                except FileNotFoundError:
                    continue
                sizes += max(0, size - self._offset) if segment == self._segment else size
        return sizes

    @property
    def torn_bytes(self) -> int:
        """What lies at this place and is no record yet."""
        return 0 if self._descriptor is None else max(0, os.fstat(self._descriptor).st_size - self._offset)

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._segment = None

    # Inside

    @property
    def _segment_or_fail(self) -> Segment:
        assert self._segment is not None  # noqa: S101 - a piece was read from it
        return self._segment

    def _begin(self) -> bool:
        """Enters the last segment that is known to count and whose first number is not behind the wanted one.

        Where there is none, it enters the first one, whether that has a record yet or not.
        """
        wanted = self._wanted if self._next is None else self._next
        segments = segments_in(self._folder)
        if not segments:
            return False
        try:
            self._enter(segments[0] if wanted is None else self._last_before(wanted, segments))
        except FileNotFoundError:
            return False  # it was trimmed just now
        while wanted is not None:
            piece = self._piece()
            if not piece.is_whole or piece.head is None or piece.head.number >= wanted:
                break
            self._next = piece.head.number + 1
            self._offset += len(piece.data)
        return self._segment is not None

    def _last_before(self, wanted: int, segments: list[Segment]) -> Segment:
        for segment in reversed(segments):
            head = first_head(self._folder, segment)
            if head is not None and head.number <= wanted and self._lineage.surely_counts(segment, head.number):
                return segment
        return segments[0]

    def _piece(self) -> Piece:
        if self._descriptor is None:
            return NOTHING
        return piece_at(self._descriptor, self._offset, origin=self._segment_or_fail.name)

    def _look(self) -> tuple[Piece, list[Segment], int | None]:
        """What is here, the segments behind this one, and the number at which this generation ends, if that is known.

        Segments are listed after a record was read: what its writer has written later counts only if it is still alone.
        Where there is no record but something behind, that is looked at first: what counts is there by then.
        """
        while True:
            piece, later = self._piece(), self._later()
            end = self._end(later)
            if piece.is_whole or not later:
                return piece, later, end
            later, piece = self._later(), self._piece()
            if later and not piece.is_whole:
                return piece, later, end

    def _end(self, later: list[Segment]) -> int | None:
        own = self._segment_or_fail.generation
        return NO_END if not later or later[0].generation == own else self._lineage.end_of(own)

    def _was_taken_back(self, piece: Piece) -> bool:
        """Whether a writer that could not open the part has removed its empty segment; another may have its name."""
        if self._descriptor is None or self._offset or piece.data:
            return False
        return os.fstat(self._descriptor).st_nlink == 0

    def _hand_over(self, piece: Piece) -> bytes:
        self._handed = (self._folder / self._segment_or_fail.name, self._offset)
        return piece.data

    def _hand_out(self, piece: Piece) -> bytes:
        self._hand_over(piece)
        self._offset += len(piece.data)
        self._suspect = None
        if piece.head is not None:
            self._next = piece.head.number + 1
        return piece.data

    def _at_end(self, piece: Piece) -> bytes | None:
        """At the end of all: what is no record may be one that is being written, unless it stays as it is."""
        if piece.may_come:
            self._suspect = None
            return None
        if self._suspect != piece.data:
            self._suspect = piece.data
            return None
        return self._hand_over(piece)

    def _is_settled(self, piece: Piece, later: list[Segment], end: int | None) -> bool:
        """Whether this record is part of the log, whatever its writer and others do from now on."""
        if not piece.is_whole or piece.head is None:
            return False
        if not later or later[0].generation == self._segment_or_fail.generation:
            return True
        if end is None:  # somebody is opening the part, and has seen what its writer went on behind
            return self._has_successor(piece)
        return piece.head.number < end

    def _has_successor(self, piece: Piece) -> bool:
        """Whether another record is behind it: its writer has found then that it was still alone."""
        assert self._descriptor is not None  # noqa: S101 - the piece was read from it
        behind = self._offset + len(piece.data)
        return piece_at(self._descriptor, behind, origin=self._segment_or_fail.name).is_whole

    def _is_damage(self, piece: Piece, later: list[Segment], end: int | None) -> bool:
        """Whether records are missing here that others come after; the end of a writer that was killed is none."""
        if piece.is_whole or not piece.data:
            return False
        if later[0].generation == self._segment_or_fail.generation:
            return True
        return end is not None and (self._next or 0) < end < NO_END

    def _later(self) -> list[Segment]:
        return [each for each in segments_in(self._folder) if self._segment is not None and each > self._segment]

    def _enter_next(self, later: list[Segment], end: int | None) -> bool:
        """Goes on in the next segment of this generation or, where it is known how far this one counts, in a newer one.

        A newer one without an opening is that of a writer that died, or just begins.
        """
        following: Segment | None = later[0]
        if later[0].generation != self._segment_or_fail.generation:
            opened = (each for each in later if first_head(self._folder, each) is not None)
            following = None if end in {None, NO_END} else next(opened, None)
        if following is None:
            return False
        try:
            self._enter(following)
        except FileNotFoundError:
            self.close()  # it was trimmed; what is there now is looked for anew
        return True

    def _enter(self, segment: Segment) -> None:
        self.close()
        self._descriptor = os.open(self._folder / segment.name, os.O_RDONLY)
        self._segment, self._offset, self._suspect = segment, 0, None
