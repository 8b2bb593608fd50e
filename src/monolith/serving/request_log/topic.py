"""Writes records to a Kafka topic, keyed by request, so that the records of one request are in one partition."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from monolith.data.kafka.client import confluent_kafka
from monolith.data.kafka.quiet_log import new_library_log
from monolith.errors import ResourceExhaustedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.online.joiner.endpoints import KafkaPlace
    from monolith.serving.request_log.sink import Told

__all__ = ["Topic"]

_PATIENCE_SECONDS = 60
"""How long a record waits for an unreachable broker."""


class Topic:
    """Sink that sends records; librdkafka buffers those that brokers have not acknowledged. Not thread-safe.

    Args:
        place: Topic and brokers.
        told: Called with the outcome of records, within `append`, `flush` and `close`.
        most_bytes: Maximum size of records that wait for the brokers; further ones are lost.
        settings: Further settings of librdkafka.

    Raises:
        UnimplementedError: the client library is not installed.
        ValueError: librdkafka rejects a setting.
    """

    def __init__(self, place: KafkaPlace, told: Told, *, most_bytes: int, settings: Mapping[str, str]) -> None:
        self._place = place
        self._told = told
        library = confluent_kafka()
        try:
            self._producer: Any = library.Producer(
                {
                    "linger.ms": 50,
                    "message.timeout.ms": _PATIENCE_SECONDS * 1000,
                    "reconnect.backoff.max.ms": 2000,
                    "queue.buffering.max.kbytes": max(1, most_bytes >> 10),
                    "queue.buffering.max.messages": 1_000_000,
                    # The default of Kafka's Java clients, so that actions written by them are in the same partitions.
                    "partitioner": "murmur2_random",
                    **settings,
                    "bootstrap.servers": place.brokers,
                },
                logger=new_library_log(id(self)),
            )
        except library.KafkaException as error:
            raise ValueError(f"request log: kafka: {error.args[0].str()}") from error

    def append(self, request_id: bytes, records: Sequence[bytes]) -> None:
        """Passes the records of a request to librdkafka."""
        for number, record in enumerate(records):
            try:
                self._producer.produce(self._place.topic, record, request_id, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0)
                self._told(len(records) - number, self._refusal("more records wait for the brokers than may"))
                break
            except Exception as error:  # noqa: BLE001 - such as a record too large; later ones may succeed
                self._told(1, self._refusal(str(error)))
        self._producer.poll(0)

    def flush(self) -> None:
        """Processes delivery reports."""
        self._producer.poll(0)

    def close(self, seconds: float) -> None:
        """Waits up to `seconds` for the brokers; records not acknowledged by then are lost."""
        left = self._producer.flush(seconds)
        if left:
            self._told(left, UnavailableError(f"{self._name}: the brokers have not taken them in {seconds:g} s"))
        self._told = partial(_nothing)
        self._producer.purge()

    @property
    def _name(self) -> str:
        return f"topic '{self._place.topic}' at {self._place.brokers}"

    def _refusal(self, reason: str) -> ResourceExhaustedError:
        return ResourceExhaustedError(f"{self._name}: {reason}")

    def _delivered(self, error: Any, _: Any) -> None:
        if error is None:
            self._told(1, None)
        else:
            self._told(1, UnavailableError(f"{self._name}: {error.str()} ({error.name()})"))


def _nothing(*_: object) -> None:
    """Ignores delivery reports after `close` has reported all records."""
