"""A log in a Kafka topic. Each part has a partition, which orders its records.

The brokers do not enforce which writer owns a part; every reader and writer applies the same rule (`Replay`): a record
that arrives after the opening of a newer generation does not count. Its writer detects this from the offsets of its
messages: a jump means that others wrote in between, and the writer then reads their records. Old records are removed by
the retention of the topic.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

from monolith import _core
from monolith.data.kafka import KafkaClient, KafkaConfig, Partition, confluent_kafka, new_library_log
from monolith.deltalog.increment import read_head, require_part
from monolith.deltalog.replay import Replay
from monolith.deltalog.transport import Claim, Extent, Transport
from monolith.deltalog.transports.file_transport import replaced
from monolith.deltalog.transports.kafka_tail import KafkaTail, PieceHeader, pieces_of
from monolith.errors import InvalidArgumentError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_URL = re.compile(r"kafka://([^/]+)/([A-Za-z0-9._-]+)")
MESSAGE_BYTES = 900_000
"""Below the usual broker limit of one million."""
PATIENCE_SECONDS = 10.0
_DOCUMENTS = ".bases"
_FETCH_WAIT_MS = 50
"""How long a broker without new messages holds a fetch; other requests queue after it."""


class KafkaTransport(Transport):
    """A transport over a topic.

    Args:
        place: ``kafka://host:port,host:port/topic``; the documents are in the topic of this name with the suffix
            ``.bases``.
        client: Further settings of librdkafka, such as ``security.protocol``.
        message_bytes: Maximum size of a message; longer records are split.
        patience_seconds: How long brokers may be unreachable before a call fails.
    """

    holds_bases = False

    def __init__(
        self,
        place: str,
        *,
        client: Mapping[str, str | int | float | bool] | None = None,
        message_bytes: int = MESSAGE_BYTES,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        parts = _URL.fullmatch(place)
        if parts is None:
            raise InvalidArgumentError(f"delta log: expected kafka://host:port,host:port/topic, got {place!r}")
        self.place = place
        self._brokers, self.topic = parts.groups()
        self.message_bytes = message_bytes
        self.patience_seconds = patience_seconds
        self._settings = dict(client or {})
        self._library = confluent_kafka()
        self._lock = threading.RLock()
        self._scans: dict[str, KafkaScan] = {}
        self._parts: set[str] = set()
        self._lookers: dict[Partition, KafkaTail] = {}
        """Partition -> the reader that scans it for parts."""
        self._clients: dict[str, KafkaClient] = {}
        """Topic -> client for metadata and offset queries."""
        self._producer: Any = None

    def parts(self) -> list[str]:
        """Returns the distinct keys of the messages. Each message is read only once."""
        with self._lock:
            for partition, end in self.ends(self.partitions()).items():
                if partition not in self._lookers:
                    self._lookers[partition] = KafkaTail(self, None, None, partition=partition)
                if self._lookers[partition].offset < end:
                    self._look_for_parts(partition)
            return sorted(self._parts)

    def _look_for_parts(self, partition: Partition) -> None:
        looker = self._lookers[partition]
        try:
            while looker.next() is not None:
                self._parts.add(looker.last_part)
        except BaseException:  # the next call starts from scratch
            self._lookers.pop(partition).close()
            raise

    def extent(self, part: str) -> Extent | None:
        """Returns what a part has, by following it from its first message on."""
        require_part(part)
        with self._lock:
            scan = self.scan(part)
            scan.drain()
            return scan.extent

    def open(self, part: str, opening: Callable[[Claim], bytes], *, after_writer: int | None = None) -> KafkaAppender:
        """Writes an opening and checks whether it counts; retries if another writer was faster."""
        while True:
            extent = self.extent(part)
            if after_writer is not None and (extent is None or extent.writer != after_writer):
                raise replaced(self.place, part, -1 if extent is None else extent.generation)
            claim = Claim(1, 0) if extent is None else Claim(extent.generation + 1, extent.next)
            record = opening(claim)
            appender = KafkaAppender(self, part)
            offsets = self.produce(part, record)
            if appender.counts(record, offsets):
                appender.end = offsets[-1] + 1
                return appender

    def tail(self, part: str, number: int | None) -> KafkaTail:
        """Returns a reader of the partition that skips records before the number."""
        require_part(part)
        return KafkaTail(self, part, number)

    def trim(self, part: str, below: int) -> int:  # noqa: ARG002 - the brokers decide
        """Removes nothing: the retention of the topic does. Returns the first number that is left."""
        extent = self.extent(part)
        return 0 if extent is None else extent.first

    # Documents

    def put_document(self, name: str, text: bytes) -> None:
        """Writes one message; the last of a name counts."""
        self._send([(self.topic + _DOCUMENTS, 0, name.encode(), text, [])])

    def documents(self) -> dict[str, bytes]:
        """Returns the contents of the last message of each name."""
        documents: dict[str, bytes] = {}
        try:
            reading = KafkaTail(self, None, None, partition=Partition(self.topic + _DOCUMENTS, 0), reassembles=False)
        except NotFoundError:
            return {}
        try:
            while (text := reading.next()) is not None:
                documents[reading.last_part] = text
        finally:
            reading.close()
        return {name: text for name, text in sorted(documents.items()) if text}

    def remove_document(self, name: str) -> None:
        """Writes a tombstone: a message without content."""
        self._send([(self.topic + _DOCUMENTS, 0, name.encode(), b"", [])])

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            for scan in self._scans.values():
                scan.tail.close()
            for looker in self._lookers.values():
                looker.close()
            for client in self._clients.values():
                client.close()
            self._scans.clear()
            self._lookers.clear()
            self._clients.clear()
            self._producer = None

    # For tails and appenders

    def new_client(self, topic: str) -> KafkaClient:
        """Returns a new consumer of a topic."""
        settings = {"fetch.wait.max.ms": _FETCH_WAIT_MS, **self._settings}
        config = KafkaConfig(patience_seconds=self.patience_seconds, client=settings, group="monolith-delta-log")
        return KafkaClient(self._brokers, [topic], config)

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Returns the end offset of each partition. The client has no pending fetch, so brokers answer immediately."""
        return self._asking(partitions[0].topic).ends(partitions)

    def partitions(self) -> list[Partition]:
        """Returns the partitions of the topic.

        Raises:
            NotFoundError: the topic does not exist.
        """
        return self._asking(self.topic).partitions()

    def _asking(self, topic: str) -> KafkaClient:
        """Returns the query client of a topic; creates it on first use."""
        with self._lock:
            if topic not in self._clients:
                self._clients[topic] = self.new_client(topic)
            return self._clients[topic]

    def partition_of(self, part: str) -> Partition:
        """Returns the partition of a part."""
        number = len(self.partitions())
        return Partition(self.topic, _core.crc32c(part.encode()) % number)

    def scan(self, part: str) -> KafkaScan:
        """Returns the scan of a part; creates it on first use."""
        with self._lock:
            if part not in self._scans:
                self._scans[part] = KafkaScan(self, part)
            return self._scans[part]

    def produce(self, part: str, record: bytes) -> list[int]:
        """Writes a record; returns the offsets of its messages."""
        head = read_head(record, origin=self.place)
        pieces = list(pieces_of(record, self.message_bytes))
        try:
            number = self.partition_of(part).number
        except NotFoundError:
            self._send([(self.topic, 0, b"", b"", [])])  # the first write creates the topic
            number = self.partition_of(part).number
        messages = []
        for index, piece in enumerate(pieces):
            header = PieceHeader(head.writer, head.generation, head.number, index, len(pieces))
            messages.append((self.topic, number, part.encode(), piece, header.encode()))
        return self._send(messages)

    def _send(self, messages: list[tuple[str, int, bytes, bytes, list[tuple[str, bytes]]]]) -> list[int]:
        """Sends messages and waits until the brokers have acknowledged all of them.

        Raises:
            UnavailableError: some may not have been written.
        """
        offsets: list[int] = []
        errors: list[str] = []

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                errors.append(str(error))

        with self._lock:
            producer = self._producer_or_new()
            for topic, partition, key, value, headers in messages:
                producer.produce(topic, value, key, partition, on_delivery=delivered, headers=headers)
            producer.flush(self.patience_seconds + 5.0)
            if errors or len(offsets) != len(messages):
                producer.purge()
                self._producer = None
                raise UnavailableError(
                    f"{self.place}: {len(messages)} messages could not be written:"
                    f" {errors[0] if errors else 'no broker answers'}"
                )
        return offsets

    def _producer_or_new(self) -> Any:
        if self._producer is None:
            settings = {
                "linger.ms": 0,
                "message.timeout.ms": int(self.patience_seconds * 1000),
                **self._settings,
                "bootstrap.servers": self._brokers,
                "enable.idempotence": True,
            }
            self._producer = self._library.Producer(settings, logger=new_library_log(id(self)))
        return self._producer


class KafkaAppender:
    """Writer of the records of one generation."""

    def __init__(self, transport: KafkaTransport, part: str) -> None:
        self._transport = transport
        self._part = part
        self.end = 0
        """Offset after the last message that was checked."""

    def append(self, number: int, record: bytes) -> None:  # noqa: ARG002 - a record contains its number
        """Writes the messages; if others wrote in between, checks whether the record still counts."""
        offsets = self._transport.produce(self._part, record)
        is_alone = offsets == list(range(self.end, self.end + len(offsets)))
        if not is_alone and not self.counts(record, offsets):
            extent = self._transport.extent(self._part)
            raise replaced(self._transport.place, self._part, -1 if extent is None else extent.generation)
        self.end = offsets[-1] + 1

    def counts(self, record: bytes, offsets: list[int]) -> bool:
        """Returns whether a record in the partition is part of the log."""
        head = read_head(record, origin=self._transport.place)
        with self._transport._lock:  # noqa: SLF001 - one lock for all that follow the partition
            return self._transport.scan(self._part).has(head.writer, head.number, behind=offsets[-1] + 1)

    def close(self) -> None:
        """Does nothing: no resources are held."""


class KafkaScan:
    """Scan of a part from its beginning that decides which records count."""

    def __init__(self, transport: KafkaTransport, part: str) -> None:
        self.tail = KafkaTail(transport, part, None)
        self._replay = Replay(part, place=transport.place)
        self._first: int | None = None
        self._last: dict[int, int] = {}
        """Writer -> number of its last record that counts."""

    @property
    def extent(self) -> Extent | None:
        """What the part has, as of the last `drain`; None: nothing."""
        replay = self._replay
        if self._first is None or replay.next_number is None or replay.generation is None or replay.writer is None:
            return None
        return Extent(self._first, replay.next_number, replay.generation, replay.writer)

    def drain(self) -> None:
        """Reads up to the end of the partition."""
        while (record := self.tail.next()) is not None:
            self._take(record)

    def has(self, writer: int, number: int, *, behind: int) -> bool:
        """Returns whether a record that ends before an offset counts."""
        while self.tail.offset < behind:
            record = self.tail.next()
            if record is not None:
                self._take(record)
        return self._last.get(writer, -1) >= number

    def _take(self, record: bytes) -> None:
        outcome = self._replay.take(record)
        increment = outcome.increment
        if outcome.verdict.is_wrong and increment is not None:
            # Readers stop at the damage, but a writer continues after it.
            self._replay = Replay(self._replay.part, place=self._replay.place, next_number=increment.number)
            outcome = self._replay.take(record)
        if outcome.verdict.counts and increment is not None:
            self._first = increment.number if self._first is None else self._first
            self._last[increment.writer] = increment.number
