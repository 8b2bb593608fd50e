"""Which generations of a part in a folder count, and how far.

Of writers that open a part at once, one may not have seen what another has written. So every opening tells which
generation it goes on from, and its number tells how much of it: a chain leads from the newest generation back to the
first one, and what is not on it counts for nobody.

A chain is certain if nobody can pass over its beginning any more. That is so

1. for the newest generation that somebody has begun, once its opening is there: whoever comes later sees it;
2. for a generation with a second record: behind the first one its writer has found that nobody else had begun.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from monolith.deltalog.file_segments import Piece, Segment, first_head, is_damaged_at_start, piece_at, segments_in
from monolith.deltalog.increment import decode
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from pathlib import Path

NO_END = 1 << 64
"""Behind every number."""


class Opening(NamedTuple):
    """What the first record of a generation tells."""

    number: int
    follows: int | None
    """The generation that it goes on from; None: the newest one before it that has an opening."""


class Lineage:
    """The chain of a part. Belongs to one thread; remembers what cannot change any more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._openings: dict[int, Opening] = {}
        self._ends: dict[int, int] = {}

    def end_of(self, generation: int) -> int | None:
        """The first number of a generation that does not count.

        Returns:
            0 where nothing of it counts; `NO_END` where there is no newer one; None: it is not known, because a
            writer is opening the part, or an opening is damaged.
        """
        if generation not in self._ends:
            newer, certain = self._newer_than(generation)
            if not newer:
                return NO_END
            if certain is None:
                return None
            end = self._end_on_chain(certain, generation, newer)
            if end is None:
                return None
            self._ends[generation] = end
        return self._ends[generation]

    def surely_counts(self, segment: Segment, first: int) -> bool:
        """Whether a segment is known to be of the log, from its first number on."""
        end = self.end_of(segment.generation)
        if end is None:
            return self._has_second_record([segment])
        return first < end

    # Inside

    def _newer_than(self, generation: int) -> tuple[list[Segment], int | None]:
        """The segments of newer generations, and the newest of them that nobody can pass over.

        They are listed once more after the newest opening was read: who began before that may have missed it.
        """
        opened = None
        while True:
            newer = [each for each in segments_in(self._folder) if each.generation > generation]
            if not newer or newer[-1].generation == opened:
                return newer, opened
            opened = newer[-1].generation
            if self._opening(opened, newer) is None:
                return newer, self._last_with_second_record(newer)

    def _last_with_second_record(self, segments: list[Segment]) -> int | None:
        for generation in sorted({each.generation for each in segments}, reverse=True):
            if self._has_second_record([each for each in segments if each.generation == generation]):
                return generation
        return None

    def _end_on_chain(self, certain: int, generation: int, newer: list[Segment]) -> int | None:
        """Goes back from a certain generation to this one, or to an older one that passes it over.

        None: an opening on the way is damaged, and what it followed is not known.
        """
        end, at = NO_END, certain
        while at > generation:
            opening = self._opening(at, newer)
            before = max((each.generation for each in newer if each.generation < at), default=generation)
            if opening is None and self._is_damaged(at, newer):
                return None
            if opening is None:
                at = before
            else:
                end = opening.number
                at = before if opening.follows is None else opening.follows
        return end if at == generation else 0

    def _opening(self, generation: int, segments: list[Segment]) -> Opening | None:
        """What a generation begins with; None: nothing yet, or it is damaged."""
        if generation not in self._openings:
            first = next((each for each in segments if each.generation == generation), None)
            if first is None:
                return None
            if first.place:  # what was before it is trimmed
                head = first_head(self._folder, first)
                return None if head is None else Opening(head.number, None)
            pieces = self._pieces(first, 1)
            if not pieces or pieces[0].head is None or not pieces[0].is_whole:
                return None
            number = pieces[0].head.number
            try:
                follows = decode(pieces[0].data, origin=first.name).follows
            except DataLossError:  # a reader reports it
                return Opening(number, None)
            self._openings[generation] = Opening(number, None if follows is None or follows >= generation else follows)
        return self._openings[generation]

    def _is_damaged(self, generation: int, segments: list[Segment]) -> bool:
        first = next((each for each in segments if each.generation == generation), None)
        return first is not None and is_damaged_at_start(self._folder, first)

    def _has_second_record(self, segments: list[Segment]) -> bool:
        """Whether the writer of some segments of one generation went on behind its first record."""
        if any(each.place for each in segments):
            return True
        return sum(each.is_whole for each in self._pieces(segments[0], 2)) > 1

    def _pieces(self, segment: Segment, count: int) -> list[Piece]:
        """The first pieces of a segment; none where it has gone."""
        try:
            descriptor = os.open(self._folder / segment.name, os.O_RDONLY)
        except FileNotFoundError:
            return []
        try:
            found: list[Piece] = []
            offset = 0
            while len(found) < count and (not found or found[-1].is_whole):
                found.append(piece_at(descriptor, offset, segment=segment))
                offset += len(found[-1].data)
            return found
        finally:
            os.close(descriptor)
