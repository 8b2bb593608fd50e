"""Readers of one group: partitions move between them, and every message is read by one of them, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from kafka_cluster import NUM_PARTITIONS, KafkaCluster
from monolith.data.kafka import KafkaConfig, KafkaDataset, KafkaPosition, KafkaReading, Partition, merge_positions
from monolith.data.kafka.client import KafkaClient
from monolith.data.kafka.dataset import Membership, run_mark
from monolith.data.kafka.fetching import Fetching
from monolith.errors import CancelledError

pytestmark = pytest.mark.usefixtures("cluster", "nothing_left_behind")


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def grouped(cluster: KafkaCluster, topic: str) -> KafkaDataset:
    config = KafkaConfig(
        group=topic,
        assignment="group",
        sample="plaintext",
        block_messages=20,
        linger_seconds=0.05,
        client={"session.timeout.ms": 4000, "heartbeat.interval.ms": 200},
    )
    return KafkaDataset(topic, cluster.brokers, config=config)


class Reader(threading.Thread):
    """Reads until it is closed, slowly enough that there is always more."""

    def __init__(self, reading: KafkaReading) -> None:
        super().__init__(name="reader of a group")
        self.reading = reading
        self.seen: list[int] = []
        self.position = b""
        self.start()

    def run(self) -> None:
        try:
            for block in self.reading:
                self.seen += [int(record) for record in block]
                self.position = self.reading.position
                time.sleep(0.002)
        except CancelledError:
            pass

    def stop(self) -> None:
        self.reading.close()
        self.join()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


@pytest.mark.slow
def test_partitions_move_between_readers_without_loss_or_doubles(own_cluster: KafkaCluster) -> None:
    own_cluster.spread("moving", numbers(2000))
    dataset = grouped(own_cluster, "moving")
    first = Reader(dataset.read())
    wait_until(lambda: len(first.seen) > 300)
    second = Reader(dataset.read())
    written = 2000
    while not second.seen or not set(second.reading._fetching.fetched):  # messages keep coming while partitions move
        own_cluster.spread("moving", numbers(200, written))
        written += 200
        time.sleep(0.05)
        assert written < 60_000
    wait_until(lambda: len(first.reading._fetching.fetched) == len(second.reading._fetching.fetched) == 2)
    first.stop()  # its partitions go to the other one
    own_cluster.spread("moving", numbers(200, written))
    written += 200
    wait_until(lambda: len(first.seen) + len(second.seen) >= written)
    time.sleep(0.2)
    own_cluster.kill()
    second.stop()  # there is nobody left to leave the group with
    assert sorted(first.seen + second.seen) == list(range(written))
    merged = KafkaPosition.from_bytes(merge_positions([first.position, second.position]))
    assert sum(merged.next.values()) == written


def test_where_a_partition_resumes(cluster: KafkaCluster) -> None:
    """Own position against what others committed: in this run, in one before, or never."""
    cluster.spread("goes-on", numbers(400))
    one, two, three, four = (Partition("goes-on", number) for number in range(NUM_PARTITIONS))
    config = KafkaConfig(group="goes-on", assignment="group")

    def connect(mark: str) -> KafkaClient:
        client = KafkaClient(cluster.brokers, ["goes-on"], config)
        client.mark = mark
        return client

    def begin(following: dict[Partition, int]) -> dict[Partition, int]:
        client, handover = connect(""), connect("this run")
        handover.close_after(client)
        fetching = Fetching(client, config, stop_ms=None, ends={})
        membership = Membership(client, handover, fetching, following=following, start="earliest")
        try:
            membership._assigned(client.consumer, [client.at(each) for each in (one, two, three, four)])
            return dict(fetching.fetched)
        finally:
            client.close()

    for mark, offsets in [("an earlier run", {one: 90, two: 80}), ("this run", {three: 70})]:
        left = connect(mark)
        left.commit(offsets)
        left.close()
    # Of the position; of the earlier run, as the position does not know it; of this run, further; of nobody.
    assert begin({one: 40, three: 60}) == {one: 40, two: 80, three: 70, four: 0}
    assert begin({three: 75}) == {one: 90, two: 80, three: 75, four: 0}


def test_runs_from_different_positions_have_different_marks() -> None:
    assert run_mark(None) == ""
    assert run_mark(b"one") != run_mark(b"two")
    assert run_mark(b"one") == run_mark(b"one")
