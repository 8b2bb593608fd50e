"""Events from Kafka topics, and examples to a topic: partition n of the joiner is partition n of each topic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from monolith.data.kafka import Fetching, KafkaClient, KafkaConfig, Partition, confluent_kafka
from monolith.errors import DataLossError, UnavailableError
from monolith.online.joiner.endpoints import Arrived, plain_offset
from monolith.online.joiner.examples import split_examples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.online.joiner.endpoints import JoinPosition, KafkaPlace

NUMBER_HEADER = "monolith-number"
"""Header of an output message: the number of its example, in digits."""
_GROUP = "monolith-joiner"
_LOOK_SECONDS = 0.5
"""Interval of the queries for the end of a silent partition."""


def _config(settings: Mapping[str, Any]) -> KafkaConfig:
    return KafkaConfig(group=_GROUP, sample="plaintext", linger_seconds=0.05, client=dict(settings))


def num_partitions(place: KafkaPlace, settings: Mapping[str, Any]) -> int:
    """Returns the number of partitions of a topic."""
    client = KafkaClient(place.brokers, [place.topic], _config(settings))
    try:
        return len(client.partitions())
    finally:
        client.close()


class TopicInput:
    """One partition of a topic. Offsets are stored by the joiner; none are committed to the brokers."""

    def __init__(self, place: KafkaPlace, number: int, settings: Mapping[str, Any]) -> None:
        self._partition = Partition(place.topic, number)
        self.name = str(self._partition)
        config = _config(settings)
        self._client = KafkaClient(place.brokers, [place.topic], config)
        self._fetching = Fetching(self._client, config, stop_ms=None, ends={})
        self._looked = 0.0
        self._is_at_end = False

    def open(self, offset: JoinPosition | None) -> None:
        """Seeks to an offset; None: the oldest available one."""
        if offset is None:
            offset = self._client.watermarks([self._partition])[self._partition][0]
        self._fetching.own({self._partition: plain_offset(offset, self.name)})

    def read(self, limit: int) -> Arrived:
        """Returns at most `limit` messages; waits 50 ms for the first."""
        records: list[bytes] = []
        places: list[int] = []
        for chunk in self._fetching.fetch(limit):
            for value, place in zip(chunk.values, chunk.offsets.tolist(), strict=True):
                if value is not None:
                    records.append(value)
                    places.append(place)
        if records:
            self._is_at_end = False
        else:
            self._client.check_contact()
        return Arrived(records, places, self._fetching.fetched[self._partition])

    def is_at_end(self) -> bool:
        """Returns whether the brokers have no more, as of the last query."""
        if not self._is_at_end and time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._looked = time.monotonic()
            try:
                self._is_at_end = not self._fetching.is_behind()
            except UnavailableError:
                self._is_at_end = False
        return self._is_at_end

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


class TopicOutput:
    """One partition of a topic that this joiner alone writes to.

    A message is an example; its key is the request, its timestamp the earliest time at which it could be known, and
    `NUMBER_HEADER` its number. In-flight messages of a killed process may arrive after those of its successor: a reader
    that accepts only increasing numbers sees every example once.
    """

    def __init__(self, place: KafkaPlace, number: int, settings: Mapping[str, Any]) -> None:
        self._place = place
        self._partition = Partition(place.topic, number)
        self.name = str(self._partition)
        self._settings = dict(settings)
        self._config = _config(settings)
        self._producer: Any = None
        self._end = 0
        self._failure: Any = None

    def open(self, place: int) -> tuple[int, int]:
        """Reads the messages from an offset on."""
        client = KafkaClient(self._place.brokers, [self._place.topic], self._config)
        try:
            low, high = client.watermarks([self._partition])[self._partition]
            if place > high:
                raise DataLossError(
                    f"{self.name}: ends at offset {high}, {place} messages were written; the topic was recreated:"
                    " use another state_dir"
                )
            number = self._last_number(client, max(low, place), high)
        finally:
            client.close()
        self._end = high
        self._producer = confluent_kafka().Producer(
            {
                **self._settings,
                "bootstrap.servers": self._place.brokers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": round(self._config.patience_seconds * 1000),
            }
        )
        return number, high

    def append(self, packed: bytes) -> int:
        """Sends examples and waits until all in-sync brokers have acknowledged them."""
        self._failure = None
        for number, known_ms, request, example in split_examples(packed):
            while True:
                try:
                    self._producer.produce(
                        self._partition.topic,
                        example,
                        request,
                        self._partition.number,
                        on_delivery=self._delivered,
                        timestamp=known_ms,
                        headers=[(NUMBER_HEADER, str(number).encode())],
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
        left = self._producer.flush(self._config.patience_seconds)
        if left or self._failure is not None:
            raise UnavailableError(
                f"{self.name}: examples could not be sent ({self._failure or 'no answer'}); they are kept, and sent"
                " when the joiner is started again"
            )
        return self._end

    def close(self) -> None:
        """Flushes and closes the producer."""
        self._producer = None

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failure = self._failure or error
        else:
            self._end = max(self._end, int(message.offset()) + 1)

    def _last_number(self, client: KafkaClient, place: int, end: int) -> int:
        number = 0
        client.consumer.assign([client.at(self._partition, place)])
        while place < end:
            for message in client.consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    if client.is_code(error, "_PARTITION_EOF"):
                        return number
                    raise client.translate(error, self.name)
                place = int(message.offset() or 0) + 1
                if message.value() is not None:  # a message without a value holds no example
                    number = max(number, self._number_of(message))
            client.raise_if_stopped()
            client.check_contact()
        return number

    def _number_of(self, message: Any) -> int:
        digits = dict(message.headers() or ()).get(NUMBER_HEADER, b"")
        if not digits.isdigit():
            raise DataLossError(
                f"{self.name}: offset {message.offset()}: a message without number; the output of a joiner must be a"
                " topic of its own"
            )
        return int(digits)
