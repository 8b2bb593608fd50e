"""One pass over topics: blocks of records, of one size if wanted, and after each one the position to resume from."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from monolith.data.dataset import Reading
from monolith.data.kafka.position import KafkaPosition
from monolith.data.records.records import Records
from monolith.errors import CancelledError, FailedPreconditionError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.data.kafka.client import KafkaClient
    from monolith.data.kafka.config import KafkaConfig
    from monolith.data.kafka.fetching import Fetching, Ordering
    from monolith.data.kafka.messages import Chunk, Unwrapping
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
    """Collects pieces until there are enough records for a block, and keeps the rest of the last one."""

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

        `generation` changes when the assigned partitions do: records that were gathered and not returned are then
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


@dataclass(frozen=True, slots=True)
class Starting:
    """Start of a reading."""

    following: Offsets
    """Next offset of each partition; kept up to date by the reading, and by other holders of the mapping."""
    inside: Offsets
    """Records of the message there that were handed out before."""
    counts: dict[str, int]
    """Partitions of each topic."""


class KafkaReading(Reading["Records"]):
    """Blocks of records of topics. `close` may be called from another thread, which ends a wait immediately.

    After an error every further call raises it again: open a new reading from the position.
    """

    def __init__(
        self,
        client: KafkaClient,
        fetching: Fetching,
        ordering: Ordering,
        *,
        unwrapping: Unwrapping,
        config: KafkaConfig,
        start: Starting,
        gathering: RecordGatherer | None,
    ) -> None:
        self._client = client
        self._fetching = fetching
        self._ordering = ordering
        self._unwrapping = unwrapping
        self._config = config
        self._following = start.following
        self._inside = dict(start.inside)
        self._to_skip = {(partition, start.following[partition]): count for partition, count in start.inside.items()}
        self._counts = start.counts
        self._gathering = gathering
        self._origin = f"Kafka at {client.brokers}"
        self._lock = threading.Lock()  # held while messages are fetched; `close` waits for it
        self._is_closed = False
        self._is_over = False
        self._is_checked = False
        self._error: Exception | None = None
        self._last_message = time.monotonic()

    @property
    def position(self) -> bytes:
        """Position after the last message of the last block, of each partition."""
        holds_back = self._gathering is not None and self._gathering.holds_back
        is_over = self._is_over or (self._ordering.is_over() and not holds_back)
        return KafkaPosition(
            next=self._following,
            ends={} if is_over else self._fetching.ends,
            inside=self._inside,
            turn=self._ordering.turn,
            counts=self._counts,
        ).to_bytes()

    @property
    def lost_messages(self) -> int:
        """Number of messages that the brokers had deleted before they were read, unless `out_of_range` raises."""
        return self._fetching.lost

    def __next__(self) -> Records:
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopIteration
            self._client.raise_if_stopped()
            try:
                records = self._advance()
            except Exception as error:
                self._error = error
                raise
            except BaseException:
                # Messages that were fetched and not returned are lost to this reading, not to the brokers.
                self._error = CancelledError(f"{self._origin}: interrupted; read on from the position")
                raise
            if records is None:
                self._is_over = True
                raise StopIteration
            return records

    def commit(self, position: bytes | None = None) -> None:
        """Commits the position of this group to the brokers, for lag monitoring. Call it after a checkpoint.

        Nothing here depends on it: a resumed reading starts from its position, not from committed offsets.

        Raises:
            UnavailableError: the brokers did not answer.
        """
        if self._is_closed:
            raise FailedPreconditionError(f"{self._origin}: the reading is closed")
        raw = self.position if position is None else position
        offsets = KafkaPosition.from_bytes(raw).next
        fetched = self._fetching.fetched
        self._client.commit({partition: offset for partition, offset in offsets.items() if partition in fetched})

    def close(self) -> None:
        """Leaves the group and closes the connections. Further calls do nothing."""
        self._client.stop()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._client.close()

    def _advance(self) -> Records | None:
        if self._gathering is None:
            piece = self._next_piece()
            if piece is None:
                return None
            records, behind = piece.records, Behind(piece.through, {})
        else:
            gathered = self._gathering.next_block(self._next_piece, lambda: self._fetching.generation)
            if gathered is None:
                return None
            records, behind = gathered
        self._following.update(behind.following)
        for partition in behind.following:
            self._inside.pop(partition, None)
        self._inside |= behind.inside
        return records

    def _next_piece(self) -> FetchedRecords | None:
        while True:
            if block := self._ordering.take():
                piece = self._piece_of(block)
                if len(piece.records):
                    return piece
                # Messages without a record: nothing is handed out of them, here or after a restart.
                if self._gathering is None:
                    self._following.update(piece.through)
            elif self._ordering.is_over():
                return None
            elif chunks := self._fetching.fetch(self._config.block_messages):
                self._last_message = time.monotonic()
                if not self._is_checked:
                    self._is_checked = self._unwrapping.check_first(chunks[0])
                self._ordering.add(chunks)
            elif self._is_idle():
                return None
            else:
                self._client.check_contact()

    def _piece_of(self, block: Sequence[Chunk]) -> FetchedRecords:
        records = self._unwrapping.records(block, self._origin)
        through = {chunk.partition: int(chunk.offsets[-1]) + 1 for chunk in block}
        piece = FetchedRecords(records, tuple(chunk.partition for chunk in block), through)
        if self._to_skip and any(partition in through for partition, _ in self._to_skip):
            piece = piece.without_first(self._to_skip)
            self._to_skip = {place: count for place, count in self._to_skip.items() if place[0] not in through}
        return piece

    def _is_idle(self) -> bool:
        """Returns whether the stream has no new messages, as opposed to unreachable or slow brokers."""
        limit = self._config.idle_seconds
        if limit is None or time.monotonic() - self._last_message < limit:
            return False
        return self._client.answers() and not self._fetching.is_behind()
