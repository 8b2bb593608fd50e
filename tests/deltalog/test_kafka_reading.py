"""Whoever follows a log in a topic keeps up: nothing is read twice, and brokers are asked only when nothing waits."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from kafka_cluster import NUM_PARTITIONS, KafkaCluster
from monolith.deltalog import DeltaLog, IncrementKind
from monolith.deltalog.transports.kafka_tail import KafkaTail
from monolith.deltalog.transports.kafka_transport import KafkaTransport

INCREMENTS = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as running:
        yield running


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What was asked of the brokers: places that were begun, messages that were read, ends."""
    counted: Counter[str] = Counter()
    for kind, name, what in (
        (KafkaTail, "_begin", "begun"),
        (KafkaTail, "_next_message", "read"),
        (KafkaTransport, "ends", "ends"),
    ):
        monkeypatch.setattr(kind, name, counting(getattr(kind, name), what, counted))
    return counted


def counting(call: object, what: str, counted: Counter[str]) -> object:
    def counted_call(*arguments: object) -> object:
        counted[what] += 1
        assert callable(call)
        return call(*arguments)

    return counted_call


def write(log: DeltaLog, part: str, count: int) -> None:
    with log.open_writer(part) as writer:
        for _ in range(count):
            writer.append(kind=IncrementKind.DENSE, payload=b"weights")


@pytest.mark.slow
def test_listing_parts_again_reads_only_new_records(cluster: KafkaCluster, asked: Counter[str]) -> None:
    with DeltaLog(f"kafka://{cluster.brokers}/parts") as log:
        write(log, "dense", INCREMENTS)
        with DeltaLog(log.place) as other:
            assert other.parts() == ["dense"]
            before = asked.copy()
            for _ in range(5):
                assert other.parts() == ["dense"]
            assert asked["begun"] == before["begun"]
            assert asked["read"] == before["read"]
            write(log, "emb.0000-1024", 1)
            before = asked.copy()
            assert other.parts() == ["dense", "emb.0000-1024"]
            assert asked["begun"] == before["begun"]
            assert asked["read"] - before["read"] <= 2 + NUM_PARTITIONS


def test_what_waits_is_read_without_a_question_for_the_end(cluster: KafkaCluster, asked: Counter[str]) -> None:
    with DeltaLog(f"kafka://{cluster.brokers}/waiting") as log:
        write(log, "dense", 1)
        with log.open_reader("dense") as reader:
            assert len(list(reader)) == 2
            write(log, "dense", INCREMENTS)
            before = asked.copy()
            reader.wait(60, threading.Event())
            assert asked["ends"] == before["ends"]
            assert len(list(reader)) == INCREMENTS + 1
            # As often as the thread that fetches was slower than the one that reads.
            assert asked["ends"] - before["ends"] < INCREMENTS // 2


@pytest.mark.slow
def test_a_wait_ends_on_a_stop_event_and_on_timeout(cluster: KafkaCluster) -> None:
    with DeltaLog(f"kafka://{cluster.brokers}/silent") as log:
        write(log, "dense", 1)
        with log.open_reader("dense") as reader:
            assert len(list(reader)) == 2
            reader.wait(0.05, threading.Event())
            stop = threading.Event()
            threading.Timer(0.05, stop.set).start()
            reader.wait(3600, stop)
            assert reader.read() is None
