"""Reads the partition that holds the records of a part.

The records of a log are split into messages below the brokers' size limit, and reassembled here.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.errors import NotFoundError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from monolith.data.kafka import KafkaClient, Partition
    from monolith.deltalog.transports.kafka_transport import KafkaTransport

HEADER_NAME = "monolith-increment"
_HEADER = struct.Struct("<QQQII")
MOST_PIECES = 1 << 20


class PieceHeader(NamedTuple):
    """Identity of the piece of a record that a message holds."""

    writer: int
    generation: int
    number: int
    piece: int
    pieces: int

    def encode(self) -> list[tuple[str, bytes]]:
        """Encodes it as the headers of a message."""
        return [(HEADER_NAME, _HEADER.pack(*self))]

    @classmethod
    def of(cls, message: Any) -> PieceHeader | None:
        """Parses the headers of a message; None if the message is not a piece."""
        for name, value in message.headers() or ():
            if name == HEADER_NAME and value is not None and len(value) == _HEADER.size:
                header = cls(*_HEADER.unpack(value))
                return header if 0 <= header.piece < header.pieces <= MOST_PIECES else None
        return None


def pieces_of(record: bytes, size: int) -> Iterator[bytes]:
    """Splits a record into pieces of at most `size` bytes."""
    return (record[begin : begin + size] for begin in range(0, len(record), size))


class Assembly:
    """Reassembly of the records of one part; pieces of several writers may interleave."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[PieceHeader, list[bytes]]] = {}

    def take(self, header: PieceHeader, value: bytes) -> bytes | None:
        """Adds a piece; returns the record that it completes, or None."""
        begun, pieces = self._open.pop(header.writer, (header, []))
        if header.piece != len(pieces) or begun[:3] + begun[4:] != header[:3] + header[4:]:
            # The writer was interrupted: a first piece restarts the record, any other piece is dropped.
            if header.piece != 0:
                return None
            begun, pieces = header, []
        pieces.append(value)
        if len(pieces) == header.pieces:
            return b"".join(pieces)
        self._open[header.writer] = (begun, pieces)
        return None


_POLL_SECONDS = 0.02
_MOST_POLL_SECONDS = 0.1


class KafkaTail:
    """`monolith.deltalog.transport.Tail` over a partition.

    Args:
        transport: The log.
        part: Part whose records are read; None: all records of the partition.
        number: The first number to read; None: all.
        partition: Partition to read; None: that of the part.
        reassembles: Whether to reassemble records from pieces; otherwise each message is returned as it is.
    """

    def __init__(
        self,
        transport: KafkaTransport,
        part: str | None,
        number: int | None,
        *,
        partition: Partition | None = None,
        reassembles: bool = True,
    ) -> None:
        self._part = part
        self._start = number
        self._reassembles = reassembles
        self._assembly: dict[str, Assembly] = {}
        self._transport = transport
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
            if not self._reassembles and key:
                self.last_part = key
                return value
            header = PieceHeader.of(message)
            if header is None or (self._part is not None and key != self._part):
                continue
            if self._start is not None and header.number < self._start:
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
