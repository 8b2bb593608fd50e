"""Records in a Kafka topic, by request, so that those of one request lie in one partition."""

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
"""For which a record waits for a broker that is away."""


class Topic:
    """Sends records; librdkafka holds those that brokers have not taken yet. Belongs to one thread.

    Args:
        place: Topic and brokers.
        told: Gets to know what became of records; called within `append`, `flush` and `close`.
        most_bytes: Of records that wait for the brokers; further ones are lost.
        settings: Further ones of librdkafka.

    Raises:
        UnimplementedError: the client library is not installed.
        ValueError: a setting that librdkafka does not take.
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
                    # As Kafka's other clients do, so that actions written by them lie in partitions of one number.
                    "partitioner": "murmur2_random",
                    **settings,
                    "bootstrap.servers": place.brokers,
                },
                logger=new_library_log(id(self)),
            )
        except library.KafkaException as error:
            raise ValueError(f"request log: kafka: {error.args[0].str()}") from error

    def append(self, request_id: bytes, records: Sequence[bytes]) -> None:
        """Hands the records of a request to the library."""
        for number, record in enumerate(records):
            try:
                self._producer.produce(self._place.topic, record, request_id, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0)
                self._told(len(records) - number, self._refusal("more records wait for the brokers than may"))
                break
            except Exception as error:  # noqa: BLE001 - such as a record too large; the next ones may fare better
                self._told(1, self._refusal(str(error)))
        self._producer.poll(0)

    def flush(self) -> None:
        """Hears what became of records."""
        self._producer.poll(0)

    def close(self, seconds: float) -> None:
        """Waits so long for the brokers; what they have not taken by then is lost."""
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
    """Nobody is told what librdkafka says once all was told."""
