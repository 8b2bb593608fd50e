"""Decides which generations of a part in a folder count, and up to which number.

When writers open a part concurrently, one may not have seen the records of another. Therefore every opening names the
generation that it continues, and its number bounds the records of that generation that count: a chain leads from the
newest generation back to the first one. Records off the chain do not count for any reader.

A chain is settled once no later opening can bypass its newest generation. This holds

1. for the newest generation in the folder, once its opening is written: every later writer sees it;
2. for a generation with a second record: after the first one its writer has verified that no other had begun.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from monolith.deltalog.increment import decode
from monolith.deltalog.transports.file_segments import (
    SegmentChunk,
    SegmentFile,
    first_head,
    is_damaged_at_start,
    piece_at,
    segments_in,
)
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from pathlib import Path

NO_END = 1 << 64
"""Greater than every number."""


class Opening(NamedTuple):
    """The first record of a generation."""

    number: int
    follows: int | None
    """The generation that it continues; None: the newest one before it that has an opening."""


class GenerationChain:
    """The chain of generations of a part. Not thread-safe; caches openings, which never change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._openings: dict[int, Opening] = {}
        self._ends: dict[int, int] = {}

    def end_of(self, generation: int) -> int | None:
        """Returns the first number of a generation that does not count.

        Returns:
            0 if no record of it counts; `NO_END` if there is no newer generation; None if undecided, because a writer
            is opening the part or an opening is damaged.
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

    def surely_counts(self, segment: SegmentFile, first: int) -> bool:
        """Returns whether a segment certainly belongs to the log, from its first number on."""
        end = self.end_of(segment.generation)
        if end is None:
            return self._has_second_record([segment])
        return first < end

    # Internals

    def _newer_than(self, generation: int) -> tuple[list[SegmentFile], int | None]:
        """Returns the segments of newer generations, and the newest settled one of those generations.

        The folder is listed again after the newest opening was read: a writer that began earlier may have missed it.
        """
        opened = None
        while True:
            newer = [segment for segment in segments_in(self._folder) if segment.generation > generation]
            if not newer or newer[-1].generation == opened:
                return newer, opened
            opened = newer[-1].generation
            if self._opening(opened, newer) is None:
                return newer, self._last_with_second_record(newer)

    def _last_with_second_record(self, segments: list[SegmentFile]) -> int | None:
        for generation in sorted({segment.generation for segment in segments}, reverse=True):
            if self._has_second_record([segment for segment in segments if segment.generation == generation]):
                return generation
        return None

    def _end_on_chain(self, certain: int, generation: int, newer: list[SegmentFile]) -> int | None:
        """Walks the chain from a settled generation back to this one, or to an older one that bypasses it.

        Returns None if an opening in between is damaged, so that its predecessor is unknown.
        """
        end, at = NO_END, certain
        while at > generation:
            opening = self._opening(at, newer)
            before = max((segment.generation for segment in newer if segment.generation < at), default=generation)
            if opening is None and self._is_damaged(at, newer):
                return None
            if opening is None:
                at = before
            else:
                end = opening.number
                at = before if opening.follows is None else opening.follows
        return end if at == generation else 0

    def _opening(self, generation: int, segments: list[SegmentFile]) -> Opening | None:
        """Returns the opening of a generation; None if it is not written yet, or damaged."""
        if generation not in self._openings:
            first = next((segment for segment in segments if segment.generation == generation), None)
            if first is None:
                return None
            if first.place:  # earlier segments were trimmed
                head = first_head(self._folder, first)
                return None if head is None else Opening(head.number, None)
            pieces = self._pieces(first, 1)
            if not pieces or pieces[0].head is None or not pieces[0].is_whole:
                return None
            number = pieces[0].head.number
            try:
                follows = decode(pieces[0].data, origin=first.name).follows
            except DataLossError:  # readers report the damage
                return Opening(number, None)
            self._openings[generation] = Opening(number, None if follows is None or follows >= generation else follows)
        return self._openings[generation]

    def _is_damaged(self, generation: int, segments: list[SegmentFile]) -> bool:
        first = next((segment for segment in segments if segment.generation == generation), None)
        return first is not None and is_damaged_at_start(self._folder, first)

    def _has_second_record(self, segments: list[SegmentFile]) -> bool:
        """Returns whether the writer of these segments, all of one generation, wrote more than the opening."""
        if any(segment.place for segment in segments):
            return True
        return sum(chunk.is_whole for chunk in self._pieces(segments[0], 2)) > 1

    def _pieces(self, segment: SegmentFile, count: int) -> list[SegmentChunk]:
        """Returns the first pieces of a segment; none if the file was removed."""
        try:
            descriptor = os.open(self._folder / segment.name, os.O_RDONLY)
        except FileNotFoundError:
            return []
        try:
            chunks: list[SegmentChunk] = []
            offset = 0
            while len(chunks) < count and (not chunks or chunks[-1].is_whole):
                chunks.append(piece_at(descriptor, offset, segment=segment))
                offset += len(chunks[-1].data)
            return chunks
        finally:
            os.close(descriptor)
