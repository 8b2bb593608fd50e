"""Blocks of one size out of what was fetched, with a position that may stand inside a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from monolith.data.records.records import Records
from monolith.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.data.kafka.position import Offsets, Partition
    from monolith.data.records.records import Places


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """The records of some messages that were fetched."""

    records: Records
    partitions: tuple[Partition, ...]
    """Partitions, indexed by the origin number in the places of the records."""
    through: Offsets
    """The offset after the last of the messages, of each partition."""
    skipped: dict[tuple[Partition, int], int] = field(default_factory=dict)
    """Partition and offset of a message -> number of its records to skip, as they were returned before."""

    def place_of(self, row: int) -> tuple[Partition, int]:
        """Returns partition and offset of a record's message."""
        places = self._places()
        return self.partitions[int(places.origin_of[row])], int(places.offsets[row])

    def first_from(self, row: int) -> dict[Partition, int]:
        """Returns partition -> its first record from `row` on."""
        origins, rows = np.unique(self._places().origin_of[row:], return_index=True)
        first: dict[Partition, int] = {}
        for origin, place in zip(origins.tolist(), rows.tolist(), strict=True):
            partition = self.partitions[origin]
            first[partition] = min(row + place, first.get(partition, row + place))
        return first

    def without_first(self, handed_out: dict[tuple[Partition, int], int]) -> FetchedRecords:
        """Skips the first records of messages that a position was inside of."""
        left = dict(handed_out)
        kept = np.ones(len(self.records), np.bool_)
        for row in range(len(kept)):
            place = self.place_of(row)
            if left.get(place, 0) > 0:
                left[place] -= 1
                kept[row] = False
        return FetchedRecords(self.records.take(np.flatnonzero(kept)), self.partitions, self.through, handed_out)

    def _places(self) -> Places:
        if self.records.places is None:
            raise InternalError("records of a topic without their places")
        return self.records.places


@dataclass(frozen=True, slots=True)
class Behind:
    """Where partitions continue after a block."""

    following: Offsets
    inside: Offsets
    """Records of the message at `following` that were handed out already; of a message that was not cut, none."""


class RecordGatherer:
    """Collects pieces until there are enough records, and keeps the rest of the last one.

    Args:
        size: Records of a block.
        drop_remainder: Whether records at the end that do not fill a block are dropped.
    """

    def __init__(self, size: int, *, drop_remainder: bool) -> None:
        self._size = size
        self._drop_remainder = drop_remainder
        self._rest: FetchedRecords | None = None
        self._used = 0

    @property
    def holds_back(self) -> bool:
        """Whether records were fetched that are not returned yet."""
        return self._rest is not None

    def next_block(
        self, next_piece: Callable[[], FetchedRecords | None], generation: Callable[[], int]
    ) -> tuple[Records, Behind] | None:
        """Returns the next block and the offsets after it; None at the end.

        Args:
            next_piece: Fetches a piece.
            generation: Changes when the assigned partitions do: records that were gathered and not returned are then
                fetched again, here or by another reader.
        """
        blocks: list[Records] = []
        behind = Behind({}, {})
        count, began = 0, generation()
        while count < self._size:
            if self._rest is None:
                piece = next_piece()
                if generation() != began:
                    blocks, behind, count, began = [], Behind({}, {}), 0, generation()
                if piece is None:
                    break
                self._rest, self._used = piece, 0
            taken = min(self._size - count, len(self._rest.records) - self._used)
            if taken:
                blocks.append(self._rest.records[self._used : self._used + taken])
            self._used += taken
            count += taken
            self._note(behind, self._rest)
        if not blocks or (count < self._size and self._drop_remainder):
            return None
        return (blocks[0] if len(blocks) == 1 else Records.join(blocks)), behind

    def _note(self, behind: Behind, piece: FetchedRecords) -> None:
        """Records where the partitions of a piece continue after the records that were taken of it."""
        behind.following.update(piece.through)
        for partition in piece.through:
            behind.inside.pop(partition, None)
        if self._used == len(piece.records):
            self._rest = None
            return
        for partition, row in piece.first_from(self._used).items():
            place = piece.place_of(row)
            behind.following[partition] = place[1]
            if before := piece.skipped.get(place, 0) + self._taken_of(piece, place):
                behind.inside[partition] = before

    def _taken_of(self, piece: FetchedRecords, place: tuple[Partition, int]) -> int:
        """Returns how many records of a message were taken, of the one that was cut."""
        count = 0
        while count < self._used and piece.place_of(self._used - count - 1) == place:
            count += 1
        return count
