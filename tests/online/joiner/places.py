"""Where joiner processes of tests read and write: folders and topics, and what lies there at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from kafka_cluster import NUM_PARTITIONS, KafkaCluster
from monolith.online.joiner import JoinerConfig, JoinRuleConfig
from monolith.online.joiner.events import decode_event, request_of
from monolith.online.joiner.examples import NumberedExample, split_examples
from monolith.online.joiner.topics import NUMBER_HEADER
from online.joiner.joins import append, traffic

RULES: dict[str, Any] = {"window_seconds": 1.0, "disorder_seconds": 0.05, "idle_seconds": 3600.0}


def write_traffic(folder: Path, count: int, partitions: int) -> Counter[tuple[int, float]]:
    """Events by partition: those of request n in partition n modulo their number."""
    impressions, actions, expected = traffic(count)
    for record in impressions:
        append(folder / f"impressions-{partition_of(record, partitions):05d}", [record])
    for record in actions:
        append(folder / f"actions-{partition_of(record, partitions):05d}", [record])
    return expected


def partition_of(record: bytes, partitions: int) -> int:
    """Of a record of `traffic`."""
    return int(request_of(decode_event(record).key).removeprefix(b"request-")) % partitions


def folder_config(folder: Path, partitions: int, **options: Any) -> JoinerConfig:
    places: dict[str, Any] = {name: str(folder / f"{name}-{{partition}}") for name in ("impressions", "actions")}
    return JoinerConfig(
        **places,
        output=str(folder / "examples-{partition}"),
        state_dir=str(folder / "state"),
        partitions=partitions,
        **{"rules": JoinRuleConfig(**RULES), "stop_at_end": True, **options},
    )


def examples_of(folder: Path, partitions: int) -> list[list[NumberedExample]]:
    return [list(split_examples((folder / f"examples-{each:05d}").read_bytes())) for each in range(partitions)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def consumed(cluster: KafkaCluster, topic: str) -> list[list[NumberedExample]]:
    """What lies in each partition, by rising numbers."""
    consumer = Consumer({"bootstrap.servers": cluster.brokers, "group.id": "test", "enable.partition.eof": True})
    found: list[list[NumberedExample]] = []
    for partition in range(NUM_PARTITIONS):
        consumer.assign([TopicPartition(topic, partition, 0)])
        part: list[NumberedExample] = []
        while (message := consumer.poll(30)) is not None and message.error() is None:
            if message.value() is None:
                continue
            number = int(dict(message.headers() or ())[NUMBER_HEADER] or 0)
            part.append(NumberedExample(number, message.timestamp()[1], message.key() or b"", message.value() or b""))
        found.append(part)
    consumer.close()
    return found


def make_topics(cluster: KafkaCluster, folder: Path) -> None:
    """The mock makes a topic with its first message; this one holds no record."""
    for name in ("impressions", "actions", "output"):
        cluster.write(f"{folder.name}-{name}", [None], partition=0)


def topic_config(cluster: KafkaCluster, folder: Path, **options: Any) -> JoinerConfig:
    places: dict[str, Any] = {
        name: f"kafka://{cluster.brokers}/{folder.name}-{name}" for name in ("impressions", "actions", "output")
    }
    return JoinerConfig(
        **places, state_dir=str(folder), **{"rules": JoinRuleConfig(**RULES), "stop_at_end": True, **options}
    )
