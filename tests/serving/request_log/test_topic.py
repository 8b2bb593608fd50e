"""A request log in a Kafka topic: by request, joined as it is, and going on when brokers are away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_cluster import NUM_PARTITIONS, KafkaCluster
from monolith.data.protos.example_pb2 import Example
from monolith.online.joiner import Joiner, action_record
from monolith.serving.request_log import read_requests
from online.joiner.places import consumed, make_topics, topic_config, wait_for
from serving.request_log.answered_requests import plain
from serving.request_log.test_log import Logged


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as running:
        yield running


def _partition_of(cluster: KafkaCluster, topic: str, requests: list[bytes]) -> dict[bytes, int]:
    """Where the messages of each request lie."""
    consumer = Consumer({"bootstrap.servers": cluster.brokers, "group.id": "t", "enable.partition.eof": True})
    found: dict[bytes, set[int]] = {request: set() for request in requests}
    for partition in range(NUM_PARTITIONS):
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            if (key := message.key() or b"") in found:
                found[key].add(partition)
    consumer.close()
    assert all(len(each) == 1 for each in found.values())
    return {request: each.pop() for request, each in found.items()}


@pytest.mark.slow
def test_the_joiner_joins_a_topic_of_requests(cluster: KafkaCluster, tmp_path: Path) -> None:
    make_topics(cluster, tmp_path)
    topic = f"{tmp_path.name}-impressions"
    logged = Logged(place=f"kafka://{cluster.brokers}/{topic}", item_column="item")
    for number in range(20):
        logged.log.answered(plain(number))
    logged.log.close()
    assert logged.count("request_log_records") == 40
    read = list(read_requests(f"kafka://{cluster.brokers}/{topic}"))
    assert sorted(each.request_id for each in read) == sorted(b"r%d" % number for number in range(20))
    assert all(len(each.examples) == 2 for each in read)
    (time_ms,) = {each.time_ms for each in read if each.request_id == b"r3"}
    partition = _partition_of(cluster, topic, [b"r3"])[b"r3"]
    click = action_record(b"r3", 301, time_ms=time_ms + 1, actions=[1])
    cluster.write(f"{tmp_path.name}-actions", [click], partition=partition)
    joiner = Joiner(topic_config(cluster, tmp_path))
    joiner.run()
    assert (joiner.counts.positives, joiner.counts.negatives) == (1, 39)
    examples = [
        Example.FromString(each.example) for part in consumed(cluster, f"{tmp_path.name}-output") for each in part
    ]
    assert [each.line_id.item_id for each in examples if each.label[0] == 1] == [301]


@pytest.mark.slow
def test_unavailable_brokers_cost_nothing_but_their_records(
    cluster: KafkaCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.write(tmp_path.name, [None], partition=0)
    place = f"kafka://{cluster.brokers}/{tmp_path.name}"
    settings: dict[str, Any] = {"message.timeout.ms": "300", "socket.timeout.ms": "100"}
    logged = Logged(place=place, kafka=settings)
    try:
        logged.log.answered(plain(1))
        wait_for(lambda: logged.count("request_log_records") == 2)
        cluster.pause()
        with caplog.at_level(logging.WARNING, "monolith.serving"):
            logged.log.answered(plain(2))
            logged.log.answered(plain(3))
            wait_for(lambda: logged.count("request_log_dropped", reason="not_written") == 4)
            cluster.resume()
            number = 3
            while logged.count("request_log_records") == 2:
                number += 1
                logged.log.answered(plain(number))
                wait_for(lambda: _settled(logged, number))  # noqa: B023 - called at once
    finally:
        cluster.resume()
        logged.log.close()
    said = [record.getMessage() for record in caplog.records if "request log:" in record.getMessage()]
    assert len([text for text in said if "are lost" in text]) == 1
    assert len([text for text in said if "written again" in text]) == 1


def test_a_setting_unknown_to_librdkafka_is_rejected() -> None:
    with pytest.raises(ValueError, match="request log: kafka: No such configuration property"):
        Logged(place="kafka://127.0.0.1:1/topic", kafka={"no.such": "thing"})


def _settled(logged: Logged, number: int) -> bool:
    lost = logged.count("request_log_dropped", reason="not_written")
    return logged.count("request_log_records") + lost == 2 * number
