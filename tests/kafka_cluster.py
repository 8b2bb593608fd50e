"""The mock cluster that librdkafka carries, in a process of its own, reached over Kafka's protocol like any other.

It keeps about 5 MB of each partition and makes a topic of 4 partitions when somebody first writes to it. Run as a
script it is that process: it prints the brokers' addresses, writes what it is told on its input, and ends with it.
"""

from __future__ import annotations

import json
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
        self.brokers = self._answer()
        assert self.brokers, "the mock cluster did not start"

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
        hexes = [None if value is None else value.hex() for value in values]
        order = {"topic": topic, "partition": partition, "timestamp": timestamp_ms or 0, "values": hexes}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        assert self._answer() == "written"

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
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()


def _serve() -> None:
    producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 0})
    brokers = producer.list_topics(timeout=10).brokers.values()
    _say(",".join(f"{broker.host}:{broker.port}" for broker in brokers))
    for line in sys.stdin:
        order = json.loads(line)
        for value in order["values"]:
            producer.produce(
                order["topic"],
                value=None if value is None else bytes.fromhex(value),
                partition=order["partition"],
                timestamp=order["timestamp"],
            )
            producer.poll(0)
        _say("written" if producer.flush(20) == 0 else "not written")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _serve()
