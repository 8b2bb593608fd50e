"""Brokers that go away, messages that are gone or bad, and a stop in the middle of a wait."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path

import pytest

from data.framed_files import framed, samples
from kafka_cluster import NUM_PARTITIONS, KafkaCluster
from monolith.data import BadRecords, Framing
from monolith.data.kafka import KafkaConfig, KafkaDataset, KafkaPosition, Partition
from monolith.errors import (
    CancelledError,
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    OutOfRangeError,
    UnavailableError,
    UnimplementedError,
)

pytestmark = pytest.mark.usefixtures("cluster", "nothing_left_behind")


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def config(**options: object) -> KafkaConfig:
    defaults = {"sample": "plaintext", "block_messages": 50, "linger_seconds": 0.05, "patience_seconds": 20.0}
    return KafkaConfig(**{**defaults, **options})  # type: ignore[arg-type]


def native_threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def test_no_broker_is_an_error_that_names_them() -> None:
    begin = time.monotonic()
    with pytest.raises(UnavailableError, match=r"Kafka at 127\.0\.0\.1:1: .*no answer for 1 seconds; .*refused"):
        KafkaDataset("clicks", "127.0.0.1:1", config=config(patience_seconds=1.0)).read()
    assert time.monotonic() - begin > 0.5


def test_a_missing_topic_is_named_with_the_existing_ones(cluster: KafkaCluster) -> None:
    cluster.spread("existing", numbers(4))
    with pytest.raises(NotFoundError, match=r"topic 'clocks' at 127.*no such topic.*existing"):
        KafkaDataset(["existing", "clocks"], cluster.brokers, config=config()).read()


@pytest.mark.slow
@pytest.mark.parametrize("order", ["arrival", "fixed"])
def test_brokers_that_pause_and_recover_lose_nothing(own_cluster: KafkaCluster, order: str) -> None:
    own_cluster.spread("pausing", numbers(2000))
    settings = config(order=order, client={"socket.timeout.ms": 1000, "fetch.message.max.bytes": 500})
    with KafkaDataset("pausing", own_cluster.brokers, stop="end", config=settings).read() as reading:
        seen = list(next(reading))
        own_cluster.pause()
        back = threading.Timer(1.5, own_cluster.resume)
        back.start()
        seen += [record for block in reading for record in block]
        back.join()
    assert sorted(map(int, seen)) == list(range(2000))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pause", "kill"])
def test_brokers_that_stay_away_are_an_error_and_the_position_stays(own_cluster: KafkaCluster, way: str) -> None:
    own_cluster.spread("leaving", numbers(40))
    settings = config(idle_seconds=0.5, patience_seconds=1.0)  # no answer is not the end of the stream
    with KafkaDataset("leaving", own_cluster.brokers, config=settings).read() as reading:
        seen = list(next(reading))
        getattr(own_cluster, way)()
        begin = time.monotonic()
        with pytest.raises(UnavailableError, match=rf"Kafka at {own_cluster.brokers}: no broker answers.*last error: "):
            seen.extend(record for block in reading for record in block)
        assert time.monotonic() - begin > 0.5
        assert sum(KafkaPosition.from_bytes(reading.position).next.values()) == len(seen)
        with pytest.raises(UnavailableError):
            next(reading)


def test_a_restart_while_messages_come_loses_and_doubles_nothing(cluster: KafkaCluster) -> None:
    cluster.spread("restarts", numbers(400))
    dataset = KafkaDataset("restarts", cluster.brokers, config=config(block_messages=37, linger_seconds=0.02))
    seen: list[bytes] = []
    position = None
    for round_ in range(6):
        with dataset.read(position) as reading:
            for _ in range(2):
                seen += list(next(reading))
                position = reading.position
            cluster.spread("restarts", numbers(60, 400 + 60 * round_))
            next(reading)  # read, not applied: a crash comes before its position is saved
    last = KafkaDataset("restarts", cluster.brokers, stop="end", config=config())
    with last.read(position) as reading:
        seen += [record for block in reading for record in block]
    assert sorted(map(int, seen)) == list(range(760))


def test_an_offset_that_does_not_exist_yet(cluster: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.spread("made-anew", numbers(40))
    following = {Partition("made-anew", number): 5 for number in range(NUM_PARTITIONS)}
    saved = KafkaPosition(next=following | {Partition("made-anew", 2): 999}, counts={"made-anew": 4}).to_bytes()

    def rest(policy: str) -> list[int]:
        dataset = KafkaDataset("made-anew", cluster.brokers, stop="end", config=config(out_of_range=policy))
        with dataset.read(saved) as reading:
            return sorted(int(record) for block in reading for record in block)

    with pytest.raises(OutOfRangeError, match=r"'made-anew', partition 2: offset 999 .* hold 0 to 9; .*out_of_range="):
        rest("raise")
    others = [number for number in range(20, 40) if number % 4 != 2]
    with caplog.at_level(logging.WARNING):
        assert rest("latest") == others
        assert rest("earliest") == sorted([*others, *range(2, 40, 4)])
    assert "offset 999 is out of range" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["raise", "earliest", "latest"])
def test_messages_deleted_while_they_wait(own_cluster: KafkaCluster, policy: str) -> None:
    """The mock cluster keeps about 5 MB of a partition: more than that pushes out what was not read yet."""
    own_cluster.write("deleted", [b"0"], partition=0)
    small = {"queued.min.messages": 1, "fetch.message.max.bytes": 1000}
    settings = config(out_of_range=policy, client=small)
    with KafkaDataset("deleted", own_cluster.brokers, config=settings).read() as reading:
        assert list(next(reading)) == [b"0"]
        reading._fetching.pause({Partition("deleted", 0)})
        for _ in range(4):
            own_cluster.write("deleted", [b"x" * 500_000] * 4, partition=0)
        own_cluster.write("deleted", [b"last"], partition=0)
        ((low, high),) = reading._client.watermarks([Partition("deleted", 0)]).values()
        assert (low > 1, high) == (True, 18)
        reading._fetching.pause(set())
        if policy == "raise":
            with pytest.raises(OutOfRangeError, match=rf"partition 0: offset 1 .* hold {low} to 17"):
                list(next(reading))
            return

        def write_when_the_end_is_known() -> None:
            while not reading.lost_messages:
                time.sleep(0.01)
            own_cluster.write("deleted", [b"new"], partition=0)

        writer = threading.Thread(target=write_when_the_end_is_known)
        if policy == "latest":
            writer.start()
        seen: list[bytes] = []
        while not seen or seen[-1] not in {b"last", b"new"}:
            seen += list(next(reading))
        assert len(seen) == (18 - low if policy == "earliest" else 1)
        assert reading.lost_messages == (low - 1 if policy == "earliest" else 17)
    if policy == "latest":
        writer.join()


def test_a_bad_message_is_named_by_its_place(cluster: KafkaCluster) -> None:
    good = framed(Framing.PLAIN, samples(2))
    cluster.write("bad", [good, good[:-1], good], partition=1)
    settings = config(framing="plain", sample="example")
    with (
        KafkaDataset("bad", cluster.brokers, stop="end", config=settings).read() as reading,
        pytest.raises(DataLossError, match=r"topic 'bad', partition 1, offset 1"),
    ):
        list(reading)
    bad = BadRecords(limit=1)
    with KafkaDataset("bad", cluster.brokers, stop="end", config=settings, bad=bad).read() as reading:
        assert sum(map(len, reading)) == 4
    assert bad.count == 1


def test_a_wrong_framing_is_an_error_at_the_first_message(cluster: KafkaCluster) -> None:
    cluster.write("other-framing", [framed(Framing.SORT_ID, samples(3), sort_id=b"abc")], partition=0)
    with (
        KafkaDataset("other-framing", cluster.brokers, stop="end").read() as reading,
        pytest.raises(DataLossError, match=r"'other-framing', partition 0, offset 0.* fits framing=.*'sort_id'"),
    ):
        next(reading)


def test_close_ends_a_wait_in_another_thread_immediately(cluster: KafkaCluster) -> None:
    cluster.spread("waiting", numbers(4))
    before = native_threads()
    reading = KafkaDataset("waiting", cluster.brokers, config=config()).read()
    seen = 0
    while seen < 4:  # partitions come when they come
        seen += len(next(reading))
    assert native_threads() > before
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            next(reading)
        except CancelledError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    reading.close()
    thread.join(50)
    assert not thread.is_alive()
    assert len(raised) == 1
    reading.close()
    with pytest.raises(CancelledError, match="closed"):
        next(reading)
    with pytest.raises(FailedPreconditionError):
        reading.commit()
    deadline = time.monotonic() + 240
    while native_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert native_threads() <= before


def test_an_interrupted_reading_does_not_resume_with_a_gap(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.spread("interrupted", numbers(400))
    dataset = KafkaDataset("interrupted", cluster.brokers, stop="end", config=config())
    with dataset.read() as reading:
        seen = list(next(reading))
        fetch = reading._fetching.fetch

        def interrupt(limit: int) -> None:
            fetch(limit)
            raise KeyboardInterrupt

        monkeypatch.setattr(reading._fetching, "fetch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(reading)
        monkeypatch.undo()
        with pytest.raises(CancelledError, match="interrupted"):
            next(reading)
        position = reading.position
    with dataset.read(position) as reading:
        seen += [record for block in reading for record in block]
    assert sorted(map(int, seen)) == list(range(400))


def test_a_missing_library_raises_an_error_that_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(UnimplementedError, match=r"pip install 'monolith-torch\[kafka\]'"):
        KafkaDataset("clicks", "localhost:1").read()
