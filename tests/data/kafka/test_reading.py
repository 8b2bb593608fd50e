"""Topics read over Kafka's own protocol: every message once, from any position, up to the right end."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from data.framed_files import framed, samples
from kafka_cluster import NUM_PARTITIONS, KafkaCluster
from monolith.data import Framing, Ids, Label, LineIdField, Parser
from monolith.data.kafka import KafkaConfig, KafkaDataset, KafkaPosition, KafkaReading, Partition, merge_positions
from monolith.errors import InvalidArgumentError

pytestmark = pytest.mark.usefixtures("cluster", "nothing_left_behind")

ORDERS = ("arrival", "fixed")
ONE_QUICK_ORDER = ("arrival", pytest.param("fixed", marks=pytest.mark.slow))


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def plain(**options: object) -> KafkaConfig:
    defaults = {"sample": "plaintext", "block_messages": 50, "linger_seconds": 0.05, "patience_seconds": 10.0}
    return KafkaConfig(**{**defaults, **options})  # type: ignore[arg-type]


def rest_of(reading: KafkaReading) -> list[bytes]:
    with reading:
        return [record for block in reading for record in block]


@pytest.mark.parametrize("order", ONE_QUICK_ORDER)
def test_reading_on_from_any_position_gives_what_is_left(cluster: KafkaCluster, order: str) -> None:
    topic = f"any-{order}"
    cluster.spread(topic, numbers(800))
    dataset = KafkaDataset(topic, cluster.brokers, stop="end", config=plain(order=order))
    before: list[tuple[bytes, list[bytes]]] = []
    with dataset.read() as reading:
        positions = [reading.position]
        blocks = []
        for block in reading:
            blocks.append(list(block))
            positions.append(reading.position)
    everything = [record for block in blocks for record in block]
    assert sorted(map(int, everything)) == list(range(800))
    before = [(position, [r for b in blocks[:i] for r in b]) for i, position in enumerate(positions)]
    for position, seen in before[::5]:
        left = rest_of(dataset.read(position))
        assert sorted(seen + left) == sorted(everything)
        if order == "fixed":
            assert seen + left == everything


@pytest.mark.slow
def test_fixed_order_is_the_same_with_other_fetch_sizes(cluster: KafkaCluster) -> None:
    cluster.spread("fetches", numbers(500))
    cluster.write("fetches", numbers(333, 500), partition=2)

    def blocks(client: dict[str, int], linger: float) -> list[list[bytes]]:
        config = plain(order="fixed", block_messages=64, linger_seconds=linger, client=client, buffer_bytes=1 << 16)
        with KafkaDataset("fetches", cluster.brokers, stop="end", config=config).read() as reading:
            return [list(block) for block in reading]

    first = blocks({}, 0.2)
    assert first == blocks({"fetch.message.max.bytes": 1000, "queued.min.messages": 1}, 0.01)
    assert [len(block) for block in first[:4]] == [64, 64, 64, 64]
    assert first[0] == numbers(500)[::NUM_PARTITIONS][:64]


def test_a_pass_ends_where_the_topic_ended_when_it_began(cluster: KafkaCluster) -> None:
    cluster.spread("pass", numbers(400))
    dataset = KafkaDataset("pass", cluster.brokers, stop="end", config=plain())
    with dataset.read() as reading:
        seen = list(next(reading))
        saved = reading.position
        cluster.spread("pass", numbers(100, 400))
        seen += [record for block in reading for record in block]
        assert next(reading, None) is None
        done = reading.position
    assert sorted(map(int, seen)) == list(range(400))
    # Stopped in the middle, the same pass; at its end, the next one.
    assert len(rest_of(dataset.read(saved))) == 350
    assert sorted(map(int, rest_of(dataset.read(done)))) == list(range(400, 500))


def test_messages_that_come_later_are_read_when_they_come(cluster: KafkaCluster) -> None:
    cluster.write("live", numbers(3), partition=0)
    with KafkaDataset("live", cluster.brokers, config=plain()).read() as reading:
        assert list(next(reading)) == numbers(3)
        later = threading.Timer(0.3, cluster.write, ["live", numbers(2, 3)], {"partition": 1})
        later.start()
        found = list(next(reading))
        while len(found) < 2:  # a poll may come between the two
            found += next(reading)
        assert found == numbers(2, 3)
        later.join()
        position = KafkaPosition.from_bytes(reading.position)
    assert [position.next[Partition("live", number)] for number in range(NUM_PARTITIONS)] == [3, 2, 0, 0]


def test_latest_starts_after_the_existing_messages(cluster: KafkaCluster) -> None:
    cluster.spread("late", numbers(40))
    with KafkaDataset("late", cluster.brokers, start="latest", config=plain()).read() as reading:
        cluster.write("late", [b"new"], partition=3)
        assert list(next(reading)) == [b"new"]


def test_start_at_offsets(cluster: KafkaCluster) -> None:
    cluster.spread("offsets", numbers(40))
    start = {"offsets": {0: 10, 1: 9, 2: 10, 3: 0}}
    dataset = KafkaDataset("offsets", cluster.brokers, start=start, stop="end", config=plain())
    assert sorted(map(int, rest_of(dataset.read()))) == sorted([*range(3, 40, 4), 37])
    with pytest.raises(InvalidArgumentError, match="start: no offset for topic 'offsets', partition 2"):
        KafkaDataset("offsets", cluster.brokers, start={"offsets": {0: 1, 1: 1, 3: 1}}).read()


def test_start_at_a_time(cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock cluster finds no message by its time, so the answer to that one request is put in its place."""
    cluster.spread("times", numbers(40))
    asked: list[tuple[int, int]] = []

    def offsets_at(client: object, partitions: list[Partition], milliseconds: int) -> dict[Partition, int]:
        asked.append((len(partitions), milliseconds))
        return dict.fromkeys(partitions, 9)

    monkeypatch.setattr("monolith.data.kafka.client.KafkaClient.offsets_at", offsets_at)
    start = datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    dataset = KafkaDataset("times", cluster.brokers, start=start, stop="end", config=plain())
    assert sorted(map(int, rest_of(dataset.read()))) == [36, 37, 38, 39]
    assert asked == [(4, 1704164645678)]


def test_a_time_without_messages_is_the_end(cluster: KafkaCluster) -> None:
    cluster.spread("no-times", numbers(40))
    start = datetime.now(UTC) + timedelta(days=1)
    with KafkaDataset("no-times", cluster.brokers, start=start, config=plain()).read() as reading:
        assert set(KafkaPosition.from_bytes(reading.position).next.values()) == {10}


def test_a_partition_ends_before_its_first_message_of_the_end_time(cluster: KafkaCluster) -> None:
    hour = 3_600_000
    for partition in range(3):
        cluster.write("until", numbers(5), partition=partition, timestamp_ms=hour)
    cluster.write("until", [b"late"], partition=0, timestamp_ms=2 * hour)
    cluster.write("until", [b"early again"], partition=0, timestamp_ms=hour)
    stop = datetime.fromtimestamp(2 * 3600, UTC)
    dataset = KafkaDataset("until", cluster.brokers, stop=stop, config=plain())
    with dataset.read() as reading:
        seen = [record for block in reading for record in block]
        position = reading.position
    assert sorted(seen) == sorted(numbers(5) * 3)
    assert KafkaPosition.from_bytes(position).next[Partition("until", 0)] == 5
    assert rest_of(dataset.read(position)) == []


@pytest.mark.slow
def test_when_the_end_time_comes_reading_ends(cluster: KafkaCluster) -> None:
    cluster.spread("soon", numbers(8))
    stop = datetime.now(UTC) + timedelta(seconds=0.6)
    begin = time.monotonic()
    assert len(rest_of(KafkaDataset("soon", cluster.brokers, stop=stop, config=plain()).read())) == 8
    assert time.monotonic() - begin > 0.3


def test_a_quiet_stream_ends_after_its_idle_time(cluster: KafkaCluster) -> None:
    cluster.spread("quiet", numbers(8))
    dataset = KafkaDataset("quiet", cluster.brokers, config=plain(idle_seconds=0.4))
    begin = time.monotonic()
    assert len(rest_of(dataset.read())) == 8
    assert time.monotonic() - begin > 0.4


@pytest.mark.slow
@pytest.mark.parametrize("order", ONE_QUICK_ORDER)
def test_a_stream_slower_than_its_idle_time_is_still_read_to_its_end(cluster: KafkaCluster, order: str) -> None:
    topic = f"slow-{order}"
    cluster.spread(topic, numbers(400))
    slow = plain(order=order, idle_seconds=1e-4, linger_seconds=1e-4, client={"fetch.message.max.bytes": 200})
    assert sorted(map(int, rest_of(KafkaDataset(topic, cluster.brokers, config=slow).read()))) == list(range(400))


def test_workers_share_the_partitions_of_all_topics(cluster: KafkaCluster) -> None:
    cluster.spread("share-a", numbers(40))
    cluster.spread("share-b", numbers(40, 40))
    topics = ["share-b", "share-a"]
    datasets = [
        KafkaDataset(topics, cluster.brokers, stop="end", config=plain(worker=worker, num_workers=3))
        for worker in range(3)
    ]
    shares, positions = [], []
    for dataset in datasets:
        with dataset.read() as reading:
            shares.append([int(record) for block in reading for record in block])
            positions.append(reading.position)
    assert sorted(number for share in shares for number in share) == list(range(80))
    assert all(shares)
    cluster.write("share-a", [b"80"], partition=1)
    cluster.write("share-b", [b"81"], partition=3)
    fewer = [
        KafkaDataset(topics, cluster.brokers, stop="end", config=plain(worker=worker, num_workers=2))
        for worker in range(2)
    ]
    with pytest.raises(InvalidArgumentError, match="merge_positions"):
        fewer[0].read(positions[0])
    merged = merge_positions(positions)
    assert sorted(number for dataset in fewer for number in rest_of(dataset.read(merged))) == [b"80", b"81"]


def test_a_worker_without_a_partition_raises(cluster: KafkaCluster) -> None:
    cluster.spread("few", numbers(4))
    config = plain(worker=4, num_workers=5)
    with pytest.raises(InvalidArgumentError, match=r"worker 4 of 5 has nothing to read.* 4 partitions"):
        KafkaDataset("few", cluster.brokers, config=config).read()


@pytest.mark.parametrize("order", ORDERS)
def test_framed_samples_become_batches(cluster: KafkaCluster, order: str) -> None:
    topic = f"framed-{order}"
    records = samples(60)
    for partition in range(NUM_PARTITIONS):
        mine = records[partition::NUM_PARTITIONS]
        cluster.write(topic, [framed(Framing.PLAIN, mine[i : i + 4]) for i in range(0, 15, 4)], partition=partition)
    config = KafkaConfig(framing="plain", order=order, block_messages=3)
    parser = Parser("example", [Ids("user"), Label()])
    with KafkaDataset(topic, cluster.brokers, stop="end", config=config).read() as reading:
        batches = [parser.parse(block) for block in reading]
    expected = parser.parse(records)
    assert sum(batch.num_rows for batch in batches) == 60
    got = [id_ for batch in batches for id_ in batch["user"].flat_values.tolist()]  # type: ignore[union-attr]
    assert sorted(got) == sorted(expected["user"].flat_values.tolist())  # type: ignore[union-attr]


def messages_of(records: list[bytes], partition: int) -> list[bytes]:
    """Framed messages of none to five records."""
    values, at = [], 0
    while at < len(records):
        count = (7 * at + partition) % 6
        values.append(framed(Framing.PLAIN, records[at : at + count]))
        if not count:
            values.append(framed(Framing.PLAIN, records[at : at + 1]))
        at += count or 1
    return values


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "size", [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(64, marks=pytest.mark.slow), 1000]
)
def test_a_pipeline_of_exact_batches_resumes_after_any_of_them(cluster: KafkaCluster, order: str, size: int) -> None:
    topic = f"pipeline-{order}-{size}"
    for partition in range(NUM_PARTITIONS):
        cluster.write(topic, messages_of(samples(240)[partition::NUM_PARTITIONS], partition), partition=partition)
    config = KafkaConfig(framing="plain", order=order, block_messages=9, linger_seconds=0.02)
    parser = Parser("example", [LineIdField("req_time")])
    dataset = KafkaDataset(topic, cluster.brokers, stop="end", config=config).batch(size).parse(parser).prefetch(2)

    def times(position: bytes | None) -> tuple[list[list[int]], list[bytes]]:
        with dataset.read(position) as reading:
            positions, batches = [reading.position], []
            for batch in reading:
                batches.append(batch["req_time"].tolist())  # type: ignore[union-attr]
                positions.append(reading.position)
            return batches, positions

    batches, positions = times(None)
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    everything = sorted(each for batch in batches for each in batch)
    assert everything == [1_700_000_000 + number for number in range(240)]
    for stopped in range(0, len(positions), max(1, len(positions) // 6)):
        rest, _ = times(positions[stopped])
        assert sorted(each for batch in [*batches[:stopped], *rest] for each in batch) == everything


def test_what_holds_rows_back_is_refused_in_order_of_arrival() -> None:
    arrival = KafkaDataset("clicks", "localhost:1")
    for make in (
        lambda: arrival.shuffle(10),
        lambda: arrival.split([0.5, 0.5]),
        lambda: arrival.batch(5).map(lambda block: block).batch(3),
    ):
        with pytest.raises(InvalidArgumentError, match='order="fixed"'):
            make()
    KafkaDataset("clicks", "localhost:1", config=KafkaConfig(order="fixed")).shuffle(10).batch(3)
    in_group = KafkaDataset("clicks", "localhost:1", config=KafkaConfig(assignment="group", framing="plain"))
    with pytest.raises(InvalidArgumentError, match="cannot commit part of a message"):
        in_group.batch(5)


def test_a_remainder_is_dropped_or_kept_for_the_next_pass(cluster: KafkaCluster) -> None:
    cluster.spread("remainder", numbers(50))
    dataset = KafkaDataset("remainder", cluster.brokers, stop="end", config=plain(block_messages=8))
    with dataset.batch(20, drop_remainder=True).read() as reading:
        assert [len(block) for block in reading] == [20, 20]
        position = reading.position
    assert len(rest_of(dataset.read(position))) == 10


def test_a_partition_added_later_is_read_from_its_first_message(cluster: KafkaCluster) -> None:
    cluster.spread("grown", numbers(40))
    dataset = KafkaDataset("grown", cluster.brokers, stop="end", config=plain())
    with dataset.read() as reading:
        list(reading)
        now = KafkaPosition.from_bytes(reading.position)
    before = {each: offset for each, offset in now.next.items() if each.number < 3}
    saved = KafkaPosition(next=before, counts={"grown": 3}).to_bytes()
    assert sorted(map(int, rest_of(dataset.read(saved)))) == list(range(3, 40, 4))


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (KafkaPosition(next={Partition("others", 0): 1}, counts={"others": 4}), "it is of others, the dataset reads"),
        (KafkaPosition(next={}, counts={}), "it is of none, the dataset reads refused"),
        (
            KafkaPosition(next={Partition("refused", n): 0 for n in (0, 1, 3)}, counts={"refused": 4}),
            "no offset for topic 'refused', partition 2",
        ),
    ],
)
def test_a_position_of_something_else_is_refused(cluster: KafkaCluster, saved: KafkaPosition, message: str) -> None:
    cluster.spread("refused", numbers(4))
    with pytest.raises(InvalidArgumentError, match=message):
        KafkaDataset("refused", cluster.brokers).read(saved.to_bytes())


def test_committed_starts_where_the_group_is_and_at_the_first_message_elsewhere(cluster: KafkaCluster) -> None:
    cluster.spread("again", numbers(40))
    config = plain(group="returning")
    dataset = KafkaDataset("again", cluster.brokers, start="committed", stop="end", config=config)
    assert sorted(map(int, rest_of(dataset.read()))) == list(range(40))
    with dataset.read() as reading:
        reading._client.commit({Partition("again", 1): 4, Partition("again", 2): 10})
    assert sorted(map(int, rest_of(dataset.read()))) == sorted([*range(0, 40, 4), *range(17, 40, 4), *range(3, 40, 4)])
    other = KafkaDataset("again", cluster.brokers, start="committed", stop="end", config=plain(group="new"))
    assert sorted(map(int, rest_of(other.read()))) == list(range(40))


def test_nothing_is_committed_unless_requested(cluster: KafkaCluster) -> None:
    cluster.spread("lag", numbers(40))
    dataset = KafkaDataset("lag", cluster.brokers, stop="end", config=plain(group="watched"))
    with dataset.read() as reading:
        next(reading)
        places = [reading._client.at(Partition("lag", number)) for number in range(NUM_PARTITIONS)]
        consumer = reading._client.consumer
        assert {each.offset for each in consumer.committed(places, timeout=60)} == {-1001}
        saved = reading.position
        list(reading)
        reading.commit(saved)
        committed = {each.partition: each.offset for each in consumer.committed(places, timeout=60)}
    following = KafkaPosition.from_bytes(saved).next
    assert committed == {partition.number: offset for partition, offset in following.items()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "first"}, "start must be"),
        ({"stop": "first"}, "stop must be"),
        ({"start": datetime(2024, 1, 1)}, "needs its zone"),  # noqa: DTZ001 - that is what is refused
        ({"stop": datetime(2024, 1, 1)}, "needs its zone"),  # noqa: DTZ001 - that is what is refused
        ({"stop": "end", "config": KafkaConfig(assignment="group")}, 'stop "end" needs assignment "worker"'),
    ],
)
def test_a_wrong_call_is_rejected_before_any_request(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KafkaDataset("clicks", "localhost:1", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "any"}, "order must be one of"),
        ({"assignment": "group", "order": "fixed"}, 'needs assignment "worker"'),
        ({"worker": 2, "num_workers": 2}, "worker must be from 0 to 1, got 2"),
        ({"framing": "xml"}, "framing must be one of"),
        ({"client": {"enable.auto.commit": True}}, "must leave enable.auto.commit alone"),
        ({"patience_seconds": 0.0}, "patience_seconds must be > 0"),
        ({"group": ""}, "group must not be empty"),
    ],
)
def test_a_wrong_config_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KafkaConfig(**options)  # type: ignore[arg-type]
