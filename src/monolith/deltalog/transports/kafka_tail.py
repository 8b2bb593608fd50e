"""Reads the partition that holds the records of a part."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from monolith.deltalog.transports.kafka_pieces import Assembly, PieceHeader
from monolith.errors import NotFoundError

if TYPE_CHECKING:
    import threading

    from monolith.data.kafka.client import KafkaClient
    from monolith.data.kafka.position import Partition
    from monolith.deltalog.transports.kafka_transport import KafkaTransport


_POLL_SECONDS = 0.02
_MOST_POLL_SECONDS = 0.1


class KafkaTail:
    """`monolith.deltalog.transport.Tail` over a partition.

    Args:
        transport: The log.
        part: Part whose records are read; None: all records of the partition.
        number: The first number to read; None: all.
        partition: Partition to read; None: that of the part.
        whole: Whether to reassemble records from pieces; otherwise each message is returned as it is.
    """

    def __init__(
        self,
        transport: KafkaTransport,
        part: str | None,
        number: int | None,
        *,
        partition: Partition | None = None,
        whole: bool = True,
    ) -> None:
        self._part = part
        self._wanted = number
        self._whole = whole
        self._assembly: dict[str, Assembly] = {}
        self._transport = transport
        self._given = partition
        self._client: KafkaClient | None = None
        self._partition = partition
        self.offset = 0
        """Offset of the next message."""
        self._end = 0
        self._held: Any = None
        """Message received by `wait` and not yet returned."""
        self.last_part = ""
        """Part of the last returned record."""
        self.where = ""
        """Topic, partition and offset of the last message of that record."""
        self._begin()

    def next(self) -> bytes | None:
        """Returns the next record; None if there are no more messages."""
        while (message := self._next_message()) is not None:
            self.where = f"topic '{message.topic()}', partition {message.partition()}, offset {message.offset()}"
            key = (message.key() or b"").decode(errors="replace")
            value = message.value() or b""
            if not self._whole and key:
                self.last_part = key
                return value
            header = PieceHeader.of(message)
            if header is None or (self._part is not None and key != self._part):
                continue
            if self._wanted is not None and header.number < self._wanted:
                continue
            record = self._assembly.setdefault(key, Assembly()).take(header, value)
            if record is not None:
                self.last_part = key
                return record
        return None

    def skip(self) -> None:
        """Does nothing: `next` continues with the next message anyway."""

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Waits for a message. Sends no query to the brokers, since answers queue after pending fetches."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not stop.is_set():
            if self._client is None:
                stop.wait(min(_POLL_SECONDS, seconds))
                return
            self._held = self._held or self._fetched(min(_POLL_SECONDS, seconds))
            if self._held is not None:
                return

    def bytes_behind(self) -> int:
        """Estimates the bytes to come: every message but the last counts with the maximum size."""
        behind = max(0, self._newest_end() - self.offset) if self._client is not None else 0
        return behind * self._transport.message_bytes

    def unread_bytes(self) -> int:
        """Returns 0: brokers store complete messages, and a record with missing messages is never completed."""
        return 0

    def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()
            self._client, self._held = None, None

    def _begin(self) -> None:
        if self._partition is None and self._part is not None:
            try:
                self._partition = self._transport.partition_of(self._part)
            except NotFoundError:
                return  # not written yet
        assert self._partition is not None  # noqa: S101 - a part or a partition is given
        client = self._transport.new_client(self._partition.topic)
        try:
            self.offset, self._end = client.watermarks([self._partition])[self._partition]
            client.consumer.assign([client.at(self._partition, self.offset)])
        except BaseException:
            client.close()
            raise
        self._client = client

    def _newest_end(self) -> int:
        assert self._partition is not None  # noqa: S101 - it was begun
        self._end = self._transport.ends([self._partition])[self._partition]
        return self._end

    def _next_message(self) -> Any:
        if self._client is None:
            self._begin()
            if self._client is None:
                return None
        message = self._held or self._fetched(0.0)  # a reader close to the end need not query the end offset
        self._held = None
        while message is None:
            if self.offset >= self._end and self.offset >= self._newest_end():
                return None
            message = self._fetched(_MOST_POLL_SECONDS)
        self.offset = int(message.offset() or 0) + 1
        return message

    def _fetched(self, seconds: float) -> Any:
        """Polls for a message; None if none came in time, or at the end of the partition."""
        assert self._client is not None  # noqa: S101 - it was begun
        message = self._client.consumer.poll(seconds)
        if message is None:
            self._client.check_contact()
            return None
        error = message.error()
        if error is None:
            self._client.seen()
            return message
        if not self._client.is_code(error, "_PARTITION_EOF"):
            raise self._client.translate(error, self._transport.place)
        # Control messages at the end are not returned.
        self.offset = max(self.offset, int(message.offset() or 0))
        return None
