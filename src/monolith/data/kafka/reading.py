"""One pass over topics: blocks of records, and after each one the position to resume from."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.data.dataset import Reading
from monolith.data.kafka.gathering import Behind, FetchedRecords
from monolith.data.kafka.position import KafkaPosition
from monolith.errors import CancelledError, FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.data.kafka.client import KafkaClient
    from monolith.data.kafka.config import KafkaConfig
    from monolith.data.kafka.fetching import Fetching
    from monolith.data.kafka.gathering import RecordGatherer
    from monolith.data.kafka.messages import Chunk, Unwrapping
    from monolith.data.kafka.ordering import Ordering
    from monolith.data.kafka.position import Offsets
    from monolith.data.records.records import Records


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
        self._client.commit(
            {partition: offset for partition, offset in offsets.items() if partition in self._fetching.fetched}
        )

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
