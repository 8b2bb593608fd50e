"""The mock cluster that librdkafka carries, in a process of its own, reached over Kafka's protocol like any other.

It keeps about 5 MB of each partition and makes a topic of 4 partitions when somebody first writes to it.
Run as a script it is that process: it prints the brokers' addresses and lives until its input closes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from confluent_kafka import Producer

NUM_PARTITIONS = 4


class KafkaCluster:
    """A running cluster, to be written to, paused and killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self.brokers = self._process.stdout.readline().decode().strip()
        assert self.brokers, "the mock cluster did not start"
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def write(
        self, topic: str, values: Iterable[bytes | None], *, partition: int, timestamp_ms: int | None = None
    ) -> None:
        """Writes messages to a partition, in this order, and waits until the broker has them."""
        if self._producer is None:
            self._producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 0, "log_level": 0})
        for value in values:
            self._producer.produce(
                topic, value=value, partition=partition, timestamp=0 if timestamp_ms is None else timestamp_ms
            )
            self._producer.poll(0)
        assert self._producer.flush(20) == 0

    def spread(self, topic: str, values: Iterable[bytes]) -> None:
        """Writes messages to all partitions, one after another in turn."""
        listed = list(values)
        for partition in range(NUM_PARTITIONS):
            self.write(topic, listed[partition::NUM_PARTITIONS], partition=partition)

    def pause(self) -> None:
        """The process stands still, as in a long garbage collection; connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        self.resume()
        self._process.kill()
        self._process.communicate()


def _serve() -> None:
    producer = Producer({"test.mock.num.brokers": 1})
    brokers = producer.list_topics(timeout=10).brokers.values()
    sys.stdout.write(",".join(f"{broker.host}:{broker.port}" for broker in brokers) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve()
