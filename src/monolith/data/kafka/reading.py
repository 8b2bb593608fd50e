"""One pass over topics: blocks of records, and behind each one the position to go on from."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from monolith.data.dataset import Reading
from monolith.data.kafka.position import KafkaPosition
from monolith.errors import CancelledError, FailedPreconditionError

if TYPE_CHECKING:
    from monolith.data.kafka.client import Client
    from monolith.data.kafka.config import KafkaConfig
    from monolith.data.kafka.fetching import Fetching
    from monolith.data.kafka.messages import Unwrapping
    from monolith.data.kafka.ordering import Ordering
    from monolith.data.kafka.position import Offsets
    from monolith.data.records import Records


class KafkaReading(Reading["Records"]):
    """Blocks of records out of topics. `close` may be called from another thread, which ends a wait at once.

    After an error every further call raises it again: begin anew from the position.
    """

    def __init__(
        self,
        client: Client,
        fetching: Fetching,
        ordering: Ordering,
        *,
        unwrapping: Unwrapping,
        config: KafkaConfig,
        following: Offsets,
        counts: dict[str, int],
    ) -> None:
        self._client = client
        self._fetching = fetching
        self._ordering = ordering
        self._unwrapping = unwrapping
        self._config = config
        self._following = following
        self._counts = counts
        self._origin = f"Kafka at {client.brokers}"
        self._lock = threading.Lock()  # held while messages are fetched; `close` waits for it
        self._is_closed = False
        self._is_over = False
        self._is_checked = False
        self._error: Exception | None = None
        self._last_message = time.monotonic()

    @property
    def position(self) -> bytes:
        """The offset behind the last message of the last block, of each partition."""
        is_over = self._is_over or self._ordering.is_over()
        return KafkaPosition(
            next=self._following,
            ends={} if is_over else self._fetching.ends,
            turn=self._ordering.turn,
            counts=self._counts,
        ).to_bytes()

    @property
    def lost_messages(self) -> int:
        """Messages that the brokers had deleted before they could be read; only if `out_of_range` lets it go on."""
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
                # What was fetched and not handed out is gone from this reading, not from the brokers.
                self._error = CancelledError(f"{self._origin}: interrupted; read on from the position")
                raise
            if records is None:
                self._is_over = True
                raise StopIteration
            return records

    def commit(self, position: bytes | None = None) -> None:
        """Tells the brokers how far this group is, for whoever watches its lag; after a checkpoint, with its position.

        Nothing here depends on it: reading on starts from the position, not from what was committed.

        Raises:
            UnavailableError: the brokers did not answer.
        """
        if self._is_closed:
            raise FailedPreconditionError(f"{self._origin}: the reading is closed")
        raw = self.position if position is None else position
        offsets = KafkaPosition.from_bytes(raw).next
        self._client.commit({each: offset for each, offset in offsets.items() if each in self._fetching.fetched})

    def close(self) -> None:
        """Leaves the group and closes the connections. Further calls do nothing."""
        self._client.stop()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._client.close()

    def _advance(self) -> Records | None:
        while True:
            if block := self._ordering.take():
                records = self._unwrapping.records(block, self._origin)
                for chunk in block:
                    self._following[chunk.partition] = int(chunk.offsets[-1]) + 1
                if len(records):
                    return records
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

    def _is_idle(self) -> bool:
        """Whether the stream is silent, and not just out of reach."""
        limit = self._config.idle_seconds
        return limit is not None and time.monotonic() - self._last_message >= limit and self._client.answers()
