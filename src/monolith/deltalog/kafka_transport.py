"""A log in a topic of Kafka. A part has a partition, whose order is that of its records.

The brokers do not know who may write, so everybody finds out by the same rule (`Replay`): a writer whose record came
behind the opening of a newer generation has not written. It learns that when its record arrives: the offsets tell
whether anybody wrote in between, and if so, what. Old records go by the retention of the topic.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from monolith import _core
from monolith.data.kafka import KafkaConfig
from monolith.data.kafka.client import Client, confluent_kafka
from monolith.data.kafka.position import Partition
from monolith.data.kafka.quiet_log import new_library_log
from monolith.deltalog.file_transport import replaced
from monolith.deltalog.increment import read_head
from monolith.deltalog.kafka_pieces import Assembly, PieceHeader, pieces_of
from monolith.deltalog.parts import require_part
from monolith.deltalog.replay import Replay
from monolith.deltalog.transport import Claim, Extent
from monolith.errors import NotFoundError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MESSAGE_BYTES = 900_000
"""Below the limit of a million that brokers have as a rule."""
PATIENCE_SECONDS = 10.0
_DOCUMENTS = ".bases"


class KafkaTransport:
    """`monolith.deltalog.transport.Transport` over a topic.

    Args:
        brokers: ``host:port,host:port``.
        topic: Where the records are; documents are in a topic of its name with ``.bases`` behind it.
        client: Further settings of librdkafka, such as ``security.protocol``.
        message_bytes: Records are cut into messages of at most so many bytes.
        patience_seconds: How long brokers may be away before a call fails.
    """

    def __init__(
        self,
        brokers: str,
        topic: str,
        *,
        client: Mapping[str, str | int | float | bool] | None = None,
        message_bytes: int = MESSAGE_BYTES,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.place = f"kafka://{brokers}/{topic}"
        self.topic = topic
        self.message_bytes = message_bytes
        self.patience_seconds = patience_seconds
        self._brokers = brokers
        self._settings = dict(client or {})
        self._library = confluent_kafka()
        self._lock = threading.RLock()
        self._scans: dict[str, _Scan] = {}
        self._producer: Any = None

    def parts(self) -> list[str]:
        """The keys of the messages; all of them are looked at."""
        found: set[str] = set()
        for partition in self.partitions():
            reading = KafkaTail(self, None, None, partition=partition)
            try:
                while reading.next() is not None:
                    found.add(reading.last_part)
            finally:
                reading.close()
        return sorted(found)

    def extent(self, part: str) -> Extent | None:
        """By following the part from its first message on."""
        require_part(part)
        with self._lock:
            try:
                scan = self.scan(part)
            except NotFoundError:
                return None
            scan.drain()
            return scan.extent

    def open(self, part: str, opening: Callable[[Claim], bytes], *, after_writer: int | None = None) -> KafkaAppender:
        """Writes an opening, and looks whether it came in time."""
        while True:
            found = self.extent(part)
            if after_writer is not None and (found is None or found.writer != after_writer):
                raise replaced(self.place, part, -1 if found is None else found.generation)
            claim = Claim(1, 0) if found is None else Claim(found.generation + 1, found.next)
            record = opening(claim)
            appender = KafkaAppender(self, part)
            offsets = self.produce(part, record)
            if appender.counts(record, offsets):
                appender.end = offsets[-1] + 1
                return appender

    def tail(self, part: str, number: int | None) -> KafkaTail:
        """A place in the partition; records before the number are passed over."""
        require_part(part)
        return KafkaTail(self, part, number)

    def trim(self, part: str, below: int) -> int:  # noqa: ARG002 - the brokers decide
        """Nothing: the retention of the topic does it."""
        found = self.extent(part)
        return 0 if found is None else found.first

    # Documents

    def put_document(self, name: str, text: bytes) -> None:
        """One message; the last of a name counts."""
        self._send([(self.topic + _DOCUMENTS, 0, name.encode(), text, [])])

    def documents(self) -> dict[str, bytes]:
        """What the last message of each name holds."""
        found: dict[str, bytes] = {}
        try:
            reading = KafkaTail(self, None, None, partition=Partition(self.topic + _DOCUMENTS, 0), whole=False)
        except NotFoundError:
            return {}
        try:
            while (text := reading.next()) is not None:
                found[reading.last_part] = text
        finally:
            reading.close()
        return {name: text for name, text in sorted(found.items()) if text}

    def remove_document(self, name: str) -> None:
        """A message without content."""
        self._send([(self.topic + _DOCUMENTS, 0, name.encode(), b"", [])])

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            for scan in self._scans.values():
                scan.tail.close()
            self._scans.clear()
            self._producer = None

    # For places in a part, and writers

    def new_client(self, topic: str) -> Client:
        """A consumer of a topic."""
        wanted = KafkaConfig(patience_seconds=self.patience_seconds, client=self._settings, group="monolith-delta-log")
        return Client(self._brokers, [topic], wanted)

    def partitions(self) -> list[Partition]:
        """Of the topic.

        Raises:
            NotFoundError: there is no such topic.
        """
        client = self.new_client(self.topic)
        try:
            return client.partitions()
        finally:
            client.close()

    def partition_of(self, part: str) -> Partition:
        """Where the records of a part are."""
        number = len(self.partitions())
        return Partition(self.topic, _core.crc32c(part.encode()) % number)

    def scan(self, part: str) -> _Scan:
        """Who follows a part for writers; made once."""
        with self._lock:
            if part not in self._scans:
                self._scans[part] = _Scan(self, part)
            return self._scans[part]

    def produce(self, part: str, record: bytes) -> list[int]:
        """Writes a record; the offsets of its messages."""
        head = read_head(record, origin=self.place)
        pieces = list(pieces_of(record, self.message_bytes))
        try:
            number = self.partition_of(part).number
        except NotFoundError:
            self._send([(self.topic, 0, b"", b"", [])])  # brokers make a topic when somebody writes to it
            number = self.partition_of(part).number
        messages = []
        for index, piece in enumerate(pieces):
            header = PieceHeader(head.writer, head.generation, head.number, index, len(pieces))
            messages.append((self.topic, number, part.encode(), piece, header.encode()))
        return self._send(messages)

    def _send(self, messages: list[tuple[str, int, bytes, bytes, list[tuple[str, bytes]]]]) -> list[int]:
        """Waits until the brokers have them all.

        Raises:
            UnavailableError: they may have some.
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
    """Writes the messages of one generation."""

    def __init__(self, transport: KafkaTransport, part: str) -> None:
        self._transport = transport
        self._part = part
        self.end = 0
        """Offset behind the last message that was looked at."""

    def append(self, number: int, record: bytes) -> None:  # noqa: ARG002 - records tell their numbers
        """Writes the messages; if others wrote meanwhile, looks what that was."""
        offsets = self._transport.produce(self._part, record)
        is_alone = offsets == list(range(self.end, self.end + len(offsets)))
        if not is_alone and not self.counts(record, offsets):
            found = self._transport.extent(self._part)
            raise replaced(self._transport.place, self._part, -1 if found is None else found.generation)
        self.end = offsets[-1] + 1

    def counts(self, record: bytes, offsets: list[int]) -> bool:
        """Whether a record that is in the partition is part of the log."""
        head = read_head(record, origin=self._transport.place)
        with self._transport._lock:  # noqa: SLF001 - one lock for all that follow the partition
            return self._transport.scan(self._part).has(head.writer, head.number, behind=offsets[-1] + 1)

    def close(self) -> None:
        """Holds nothing."""


class KafkaTail:
    """`monolith.deltalog.transport.Tail` over a partition.

    Args:
        transport: The log.
        part: Which records are wanted; None: all of the partition.
        number: The first number that is wanted; None: all.
        partition: None: that of the part.
        whole: Whether messages are pieces of records; otherwise each is handed out as it is.
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
        self._client: Client | None = None
        self._partition = partition
        self.offset = 0
        """Of the next message."""
        self._end = 0
        self.last_part = ""
        """Of the record that was handed out last."""
        self._begin()

    def next(self) -> bytes | None:
        """The next record; None: there are no more messages."""
        while (message := self._next_message()) is not None:
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

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Asks the brokers for the end of the partition again and again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not stop.wait(min(0.02, seconds)):
            if self._client is None or self._newest_end() > self.offset:
                return

    def bytes_behind(self) -> int:
        """Messages that come, each taken for one of the largest size but the last."""
        behind = max(0, self._newest_end() - self.offset) if self._client is not None else 0
        return behind * self._transport.message_bytes

    def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _begin(self) -> None:
        if self._partition is None and self._part is not None:
            try:
                self._partition = self._transport.partition_of(self._part)
            except NotFoundError:
                return  # nobody has written yet
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
        assert self._client is not None and self._partition is not None  # noqa: S101, PT018 - it was begun
        self._end = self._client.ends([self._partition])[self._partition]
        return self._end

    def _next_message(self) -> Any:
        if self._client is None:
            self._begin()
            if self._client is None:
                return None
        if self.offset >= self._end and self.offset >= self._newest_end():
            return None
        while True:
            message = self._client.consumer.poll(0.1)
            if message is None:
                self._client.check_contact()
                continue
            error = message.error()
            if error is None:
                self._client.seen()
                self.offset = int(message.offset() or 0) + 1
                return message
            if self._client.is_code(error, "_PARTITION_EOF"):
                if int(message.offset() or 0) >= self._end:
                    self.offset = max(self.offset, self._end)  # control messages at the end are not handed out
                    return None
                continue
            raise self._client.translate(error, self._transport.place)


class _Scan:
    """Follows a part from its beginning, to know which records count."""

    def __init__(self, transport: KafkaTransport, part: str) -> None:
        transport.partition_of(part)  # raises where there is no topic
        self.tail = KafkaTail(transport, part, None)
        self._replay = Replay(part, place=transport.place)
        self._first: int | None = None
        self._last: dict[int, int] = {}
        """Writer -> number of its last record that counts."""

    @property
    def extent(self) -> Extent | None:
        """What was found."""
        replay = self._replay
        if self._first is None or replay.next_number is None or replay.generation is None or replay.writer is None:
            return None
        return Extent(self._first, replay.next_number, replay.generation, replay.writer)

    def drain(self) -> None:
        """Takes what there is."""
        while (record := self.tail.next()) is not None:
            self._take(record)

    def has(self, writer: int, number: int, *, behind: int) -> bool:
        """Whether a record that ends before an offset counts."""
        while self.tail.offset < behind:
            record = self.tail.next()
            if record is not None:
                self._take(record)
        return self._last.get(writer, -1) >= number

    def _take(self, record: bytes) -> None:
        outcome = self._replay.take(record)
        found = outcome.increment
        if outcome.verdict.is_wrong and found is not None:
            # What is damaged stays so for readers; a writer goes on behind it all the same.
            self._replay = Replay(self._replay.part, place=self._replay.place, next_number=found.number)
            outcome = self._replay.take(record)
        if outcome.verdict.counts and found is not None:
            self._first = found.number if self._first is None else self._first
            self._last[found.writer] = found.number
