"""Events from Kafka topics, and examples to one: the joiner's partition n is partition n of each topic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from monolith.data.kafka.client import Client, confluent_kafka
from monolith.data.kafka.config import KafkaConfig
from monolith.data.kafka.fetching import Fetching
from monolith.data.kafka.position import Partition
from monolith.errors import DataLossError, UnavailableError
from monolith.online.joiner.endpoints import Arrived, plain_offset
from monolith.online.joiner.numbered import split_examples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.online.joiner.endpoints import JoinPosition, KafkaPlace

__all__ = ["NUMBER_HEADER", "TopicInput", "TopicOutput", "num_partitions"]

NUMBER_HEADER = "monolith-number"
"""Header of an output message: the number of its example, in digits."""
_GROUP = "monolith-joiner"
_LOOK_SECONDS = 0.5
"""How often the brokers are asked where a silent partition ends."""


def _config(settings: Mapping[str, Any]) -> KafkaConfig:
    return KafkaConfig(group=_GROUP, sample="plaintext", linger_seconds=0.05, client=dict(settings))


def num_partitions(place: KafkaPlace, settings: Mapping[str, Any]) -> int:
    """How many partitions a topic has.

    Raises:
        NotFoundError: there is no such topic.
    """
    client = Client(place.brokers, [place.topic], _config(settings))
    try:
        return len(client.partitions())
    finally:
        client.close()


class TopicInput:
    """One partition of a topic; offsets are kept by whoever reads, brokers are told none.

    Args:
        place: Topic and brokers.
        number: Of the partition.
        settings: Further ones of librdkafka.
    """

    def __init__(self, place: KafkaPlace, number: int, settings: Mapping[str, Any]) -> None:
        self._partition = Partition(place.topic, number)
        self.name = str(self._partition)
        config = _config(settings)
        self._client = Client(place.brokers, [place.topic], config)
        self._fetching = Fetching(self._client, config, stop_ms=None, ends={})
        self._looked = 0.0
        self._is_at_end = False

    def open(self, offset: JoinPosition | None) -> None:
        """Goes to an offset; None: the oldest that is there."""
        if offset is None:
            offset = self._client.watermarks([self._partition])[self._partition][0]
        self._fetching.own({self._partition: plain_offset(offset, self.name)})

    def read(self, limit: int) -> Arrived:
        """At most `limit` messages; waits a twentieth of a second for the first."""
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
        """Whether the brokers have no more, as far as they were asked lately."""
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

    A message is an example; its key is the request, its time since when it could be known, and `NUMBER_HEADER` its
    number. What a process had on its way when it died may arrive behind what its successor sends: a reader that takes
    only rising numbers sees every example once.
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
        """Reads what is there from an offset on."""
        client = Client(self._place.brokers, [self._place.topic], self._config)
        try:
            low, high = client.watermarks([self._partition])[self._partition]
            if place > high:
                raise DataLossError(
                    f"{self.name}: ends at offset {high}, {place} messages were written; the topic was made anew:"
                    " begin with another state_dir"
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
        """Sends examples; they are with all brokers when it returns."""
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
        """Ends the producer; what was appended is sent."""
        self._producer = None

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failure = self._failure or error
        else:
            self._end = max(self._end, int(message.offset()) + 1)

    def _last_number(self, client: Client, place: int, end: int) -> int:
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
                if message.value() is not None:  # one without a value holds no example
                    number = max(number, self._number_of(message))
            client.raise_if_stopped()
            client.check_contact()
        return number

    def _number_of(self, message: Any) -> int:
        found = dict(message.headers() or ()).get(NUMBER_HEADER, b"")
        if not found.isdigit():
            raise DataLossError(
                f"{self.name}: offset {message.offset()}: a message without number; the output of a joiner must be a"
                " topic of its own"
            )
        return int(found)
