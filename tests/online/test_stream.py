"""Numbered examples are handed out once, whatever the stream does: stall, flood, rewind, or come from the future."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from confluent_kafka import Producer

from kafka_cluster import NUM_PARTITIONS, KafkaCluster
from monolith.data.kafka.position import Partition
from monolith.data.position import known_examples, known_times
from monolith.data.records.bad_records import BadRecords
from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.hook import Hook, HookedSession
from monolith.online.joiner.endpoints import KafkaPlace
from monolith.online.joiner.examples import pack_examples
from monolith.online.joiner.topics import NUMBER_HEADER
from monolith.online.stream import ExampleStream, StreamConfig, StreamHook
from monolith.online.stream.admission import Reached, StreamPosition
from monolith.online.stream.files import Fetched, FileExamples
from monolith.online.stream.topics import TopicExamples
from monolith.testing import ExampleTask, FakeClock
from monolith.train import InputConfig, PipelineConfig, Trainer, TrainerConfig
from monolith.train.context import TaskContext
from online.streams import append, events_of, now_ms, numbered
from system.crash.stream_task import StreamCountingTask


def stream_of(folder: Path, partitions: int = 2, **options: Any) -> ExampleStream:
    config = StreamConfig(partitions=partitions, **{"stop_at_end": True, "linger_seconds": 0.001, **options})
    return ExampleStream(str(folder / "examples-{partition}"), config)


def read_all(stream: ExampleStream, position: bytes | None = None, size: int = 8) -> tuple[list[int], bytes]:
    with stream.blocks(size).read(position) as reading:
        events = [event for block in reading for event in events_of(block)]
        return events, reading.position


def test_every_example_is_read_once_and_a_position_resumes_after_any_block(tmp_path: Path) -> None:
    append(tmp_path / "examples-00000", numbered(range(1, 51)))
    append(tmp_path / "examples-00001", numbered(range(1, 31), first_event=1000))
    expected = [*range(1, 51), *range(1001, 1031)]
    assert sorted(read_all(stream_of(tmp_path))[0]) == expected
    seen: list[int] = []
    position = None
    while True:  # a new process behind every block
        with stream_of(tmp_path).blocks(7).read(position) as reading:
            block = next(reading, None)
            if block is None:
                break
            assert 1 <= len(block) <= 7
            seen += events_of(block)
            position = reading.position
    assert sorted(seen) == expected
    assert json.loads(position or b"")["partitions"][0][0] == 50


def test_a_torn_record_is_waited_for(tmp_path: Path) -> None:
    append(tmp_path / "examples-00000", numbered([1, 2]))
    whole = (tmp_path / "examples-00000").read_bytes()
    append(tmp_path / "examples-00000", numbered([3]))
    longer = (tmp_path / "examples-00000").read_bytes()
    (tmp_path / "examples-00000").write_bytes(longer[: len(whole) + 20])
    events, position = read_all(stream_of(tmp_path, 1))
    assert events == [1, 2]
    (tmp_path / "examples-00000").write_bytes(longer)
    assert read_all(stream_of(tmp_path, 1), position)[0] == [3]


def test_rewound_examples_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "examples-00000"
    append(path, numbered(range(1, 6)))
    append(path, numbered(range(4, 9)))  # what a successor sent again
    stream = stream_of(tmp_path, 1)
    events, position = read_all(stream)
    assert events == list(range(1, 9))
    assert (stream.counts.examples, stream.counts.repeated) == (8, 2)
    path.unlink()
    append(path, numbered(range(1, 4)))  # an older copy was put back
    again = stream_of(tmp_path, 1)
    assert read_all(again, position)[0] == []
    append(path, numbered(range(4, 11)))
    assert read_all(again, position)[0] == [9, 10]
    assert again.counts.repeated == 3 + 8
    assert "train its examples with another model_dir" in caplog.text


def test_a_file_that_is_cut_while_it_is_read_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "examples-00000"
    append(path, numbered(range(1, 4)))
    stream = stream_of(tmp_path, 1, stop_at_end=False)
    with stream.blocks(3).read() as reading:
        assert events_of(next(reading)) == [1, 2, 3]
        path.unlink()
        append(path, numbered(range(1, 6)))
        assert events_of(next(reading)) == [4, 5]
    assert stream.counts.repeated == 3


def test_missing_numbers_are_an_error_or_counted_and_what_came_before_is_good(tmp_path: Path) -> None:
    append(tmp_path / "examples-00000", numbered([1, 2, 5, 6]))
    with stream_of(tmp_path, 1).blocks(8).read() as reading:
        assert events_of(next(reading)) == [1, 2]
        behind = reading.position
        for _ in range(2):
            with pytest.raises(DataLossError, match=r"example 5 follows 2, 2 are missing; .*--stream_missing count"):
                next(reading)
        assert reading.position == behind
    stream = stream_of(tmp_path, 1, missing="count")
    assert read_all(stream)[0] == [1, 2, 5, 6]
    assert stream.counts.missing == 2


def test_a_stream_may_begin_after_its_first_number(tmp_path: Path) -> None:
    append(tmp_path / "examples-00000", numbered([7, 8]))
    assert read_all(stream_of(tmp_path, 1))[0] == [7, 8]


def test_old_examples_are_skipped_only_where_a_maximum_lag_is_set(tmp_path: Path) -> None:
    old = now_ms() - 3_600_000
    append(tmp_path / "examples-00000", [*numbered([1, 2], known_ms=old), *numbered([3])])
    assert read_all(stream_of(tmp_path, 1))[0] == [1, 2, 3]
    stream = stream_of(tmp_path, 1, max_lag_seconds=60.0)
    assert read_all(stream)[0] == [3]
    assert (stream.counts.too_old, stream.counts.examples) == (2, 1)


def test_times_from_the_future_are_bounded_and_counted(tmp_path: Path) -> None:
    far = now_ms() + 365 * 86_400_000
    append(tmp_path / "examples-00000", [*numbered([1], known_ms=far), *numbered([2])])
    stream = stream_of(tmp_path, 1)
    events, position = read_all(stream)
    assert events == [1, 2]
    assert stream.counts.ahead == 1
    times = known_times(position)
    assert times is not None
    assert now_ms() - 60_000 < times[0] <= times[1] <= now_ms()


def test_times_are_found_through_stages_around_the_stream(tmp_path: Path) -> None:
    append(tmp_path / "examples-00000", numbered([1], known_ms=5000))
    with stream_of(tmp_path, 1).blocks(8).take(1).read() as reading:
        next(reading)
        assert known_times(reading.position) == (5000, 5000)
    assert known_times(b"") is None
    assert known_times(b'{"dataset":"files"}') is None


def test_a_position_counts_the_examples_in_front_of_it_over_restarts(tmp_path: Path) -> None:
    old = now_ms() - 3_600_000
    append(tmp_path / "examples-00000", [*numbered([1, 2], known_ms=old), *numbered([3, 4, 5])])
    with stream_of(tmp_path, 1, max_lag_seconds=60.0).blocks(2).take(9).read() as reading:
        next(reading)
        position = reading.position
    assert known_examples(position) == 2, "those that were left out are not among them"
    append(tmp_path / "examples-00000", numbered([6]))
    with stream_of(tmp_path, 1).blocks(8).take(9).read(position) as reading:
        next(reading)
        assert known_examples(reading.position) == 4


@pytest.mark.parametrize(
    "position",
    [b"", b"[]", b"3", b'{"examples":-1}', b'{"examples":true}', b'{"examples":"4"}', b'{"source":7}', b"\xff"],
)
def test_a_position_without_counts_reports_none(position: bytes) -> None:
    assert known_examples(position) is None
    assert known_times(position) is None


def test_a_position_from_before_positions_counted_can_be_resumed(tmp_path: Path) -> None:
    append(tmp_path / "examples-00000", numbered([1, 2, 3]))
    stream = stream_of(tmp_path, 1)
    with stream.blocks(2).read() as reading:
        next(reading)
        fields = json.loads(reading.position)
    del fields["examples"]
    with stream.blocks(2).read(json.dumps(fields).encode()) as reading:
        next(reading)
        assert known_examples(reading.position) == 1


def test_a_flood_shows_its_lag(tmp_path: Path) -> None:
    append(tmp_path / "examples-00000", numbered(range(1, 101), known_ms=now_ms() - 100_000))
    clock = FakeClock()
    clock.advance(now_ms() / 1000 - clock.now())
    config = StreamConfig(partitions=1, stop_at_end=True)
    stream = ExampleStream(str(tmp_path / "examples-{partition}"), config, clock=clock)
    with stream.blocks(10).read() as reading:
        next(reading)
        clock.advance(1.0)
        next(reading)
        assert 100 < stream.lag_seconds < 200
        assert stream.behind == len(pack_examples(numbered(range(21, 101))))
        assert stream.counts.examples == 20


def test_lag_is_that_of_full_blocks_and_never_negative(tmp_path: Path) -> None:
    clock = FakeClock()
    clock.advance(now_ms() / 1000 - clock.now())
    for first, age in ((1, 0.5), (11, -0.5), (21, 0.5)):
        known = int(1000 * (clock.now() - age))
        append(tmp_path / "examples-00000", numbered(range(first, min(first + 10, 26)), known_ms=known))
    config = StreamConfig(partitions=1, stop_at_end=True)
    stream = ExampleStream(str(tmp_path / "examples-{partition}"), config, clock=clock)
    with stream.blocks(10).read() as reading:
        lags = [round(stream.lag_seconds, 2) for _ in reading]
    assert lags == [0.5, 0.0, 0.0], "the last block is not full"


def test_how_much_waits_is_looked_up_twice_a_second_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path / "examples-00000", numbered(range(1, 101)))
    looks: list[float] = []
    clock = FakeClock()
    clock.advance(now_ms() / 1000 - clock.now())

    def behind(_: FileExamples) -> int:
        looks.append(clock.monotonic())
        return len(looks)

    monkeypatch.setattr(FileExamples, "behind", behind)
    config = StreamConfig(partitions=1, stop_at_end=True)
    stream = ExampleStream(str(tmp_path / "examples-{partition}"), config, clock=clock)
    with stream.blocks(1).read() as reading:
        for _ in reading:
            clock.advance(0.25)
    assert 48 <= len(looks) <= 50


def test_a_silent_stream_reports_the_stall_and_its_end(tmp_path: Path) -> None:
    append(tmp_path / "examples-00000", numbered([1]))
    stream = stream_of(tmp_path, 1, stop_at_end=False, stall_seconds=0.4)
    silences: list[float] = []
    flows: list[float] = []
    stalled = threading.Event()

    def note(seconds: float) -> None:
        silences.append(seconds)
        if seconds >= 0.4:
            stalled.set()

    stream.on_silence, stream.on_flow = note, flows.append
    with stream.blocks(4).read() as reading:
        next(reading)

        def go_on() -> None:
            stalled.wait(60)
            append(tmp_path / "examples-00000", numbered([2]))

        thread = threading.Thread(target=go_on)
        thread.start()
        assert events_of(next(reading)) == [2]
        thread.join()
    assert len(silences) == 2  # for a moment, and when it has stalled
    assert silences[0] < silences[1]
    assert len(flows) == 1


def test_a_wait_ends_when_the_stream_is_stopped(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, 1, stop_at_end=False)
    with stream.blocks(4).read() as reading:
        threading.Timer(0.05, stream.stop).start()
        assert list(reading) == []


def test_positions_of_other_streams_are_refused(tmp_path: Path) -> None:
    append(tmp_path / "examples-00000", numbered([1]))
    _, position = read_all(stream_of(tmp_path, 2))
    with pytest.raises(InvalidArgumentError, match=r"2 partitions, and there are 1; .*--stream_partitions"):
        read_all(stream_of(tmp_path, 1), position)
    assert read_all(stream_of(tmp_path, 3), position)[0] == []
    other = ExampleStream(str(tmp_path / "others-{partition}"), StreamConfig(partitions=2))
    with pytest.raises(InvalidArgumentError, match=r"saved with stream 'examples-\{partition\}'"):
        other.blocks(4).read(position)


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("examples-{partition}", {}, "partitions must be given"),
        ("examples", {"partitions": 2}, "is one file, and partitions is 2"),
        ("examples", {"kafka": {"a": "b"}}, "is no topic"),
        ("examples", {"missing": "drop"}, "missing must be one of"),
        ("examples", {"max_lag_seconds": 0.0}, "max_lag_seconds"),
    ],
)
def test_settings_that_do_not_fit_are_refused(place: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExampleStream(place, StreamConfig(**options))


def test_what_is_no_output_of_a_joiner_is_named(tmp_path: Path) -> None:
    (tmp_path / "examples-00000").write_bytes(b"\xff" * 100)
    with pytest.raises(DataLossError, match=r"examples-00000': from byte 0: .*put the file back"):
        read_all(stream_of(tmp_path, 1))


def test_blocks_cannot_be_batched_or_shared_again(tmp_path: Path) -> None:
    blocks = stream_of(tmp_path, 1).blocks(4)
    with pytest.raises(InvalidArgumentError, match=r"of the size that ctx\.examples was given"):
        blocks.batch(8)
    with pytest.raises(InvalidArgumentError, match="one process reads a stream"):
        blocks.share(0, 2)
    assert blocks.share(0, 1) is blocks


# Topics


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as running:
        yield running


def send(cluster: KafkaCluster, topic: str, examples: list[Any], partition: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.brokers, "linger.ms": 0})
    for number, known_ms, request, example in examples:
        headers: Any = [(NUMBER_HEADER, str(number).encode())] if number else []
        producer.produce(topic, example, request, partition, timestamp=known_ms, headers=headers)
    assert producer.flush(20) == 0


def fetched(source: TopicExamples, count: int) -> list[Fetched]:
    found: list[Fetched] = []
    while len(found) < count:
        found += source.fetch(count - len(found), 0.05)
    return found


def topic_stream(cluster: KafkaCluster, topic: str, **options: Any) -> ExampleStream:
    return ExampleStream(f"kafka://{cluster.brokers}/{topic}", StreamConfig(stop_at_end=True, **options))


@pytest.mark.slow
def test_a_topic_is_read_once_although_a_dead_joiner_sent_some_again(cluster: KafkaCluster) -> None:
    for partition in range(NUM_PARTITIONS):
        send(cluster, "sent", numbered([1, 2, 3, 4], first_event=100 * partition), partition)
    send(cluster, "sent", numbered([3, 4, 5]), 0)
    stream = topic_stream(cluster, "sent")
    seen: list[int] = []
    with stream.blocks(5).read() as reading:
        seen += events_of(next(reading))
        position = reading.position
    left, end = read_all(topic_stream(cluster, "sent"), position)
    assert sorted(seen + left) == sorted([100 * each + n for each in range(NUM_PARTITIONS) for n in range(1, 5)] + [5])
    send(cluster, "sent", numbered([6]), 0)
    assert read_all(topic_stream(cluster, "sent"), end)[0] == [6]
    with pytest.raises(InvalidArgumentError, match="has 4 partitions, expected 2"):
        topic_stream(cluster, "sent", partitions=2).blocks(4).read()
    with pytest.raises(NotFoundError):
        topic_stream(cluster, "nobody-wrote-this", kafka={"allow.auto.create.topics": "false"}).blocks(4).read()


def test_a_recreated_topic_is_read_from_its_beginning(cluster: KafkaCluster) -> None:
    send(cluster, "anew", numbered([1, 2, 3]), 1)
    reached = [Reached(), Reached(2, 900), Reached(), Reached()]
    position = StreamPosition(reached).to_bytes("topic anew", (0, 0))
    stream = topic_stream(cluster, "anew")
    assert read_all(stream, position)[0] == [3]
    assert stream.counts.repeated == 2


@pytest.mark.slow
def test_a_partition_whose_messages_are_deleted_restarts_and_the_others_continue(
    cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    for partition in (0, 1):
        send(cluster, "gone", numbered([1, 2, 3]), partition)
    place = KafkaPlace(cluster.brokers, "gone")
    source = TopicExamples(place, [Reached()] * NUM_PARTITIONS, BadRecords(), {})
    with contextlib.closing(source):
        assert Counter(each.partition for each in fetched(source, 6)) == {0: 3, 1: 3}
        source._next[Partition("gone", 1)] = 900
        source._assign()
        assert [(each.partition, each.example.number) for each in fetched(source, 3)] == [(1, 1), (1, 2), (1, 3)]
        assert source.is_at_end()
        assert source.fetch(1, 0.0) == []
    assert [each.getMessage() for each in caplog.records if "no longer exists" in each.getMessage()] == [
        "topic 'gone', partition 1: offset 900 no longer exists; resuming at 0"
    ]


def test_messages_without_number_are_bad(cluster: KafkaCluster) -> None:
    send(cluster, "poisoned", [numbered([1])[0], numbered([1])[0]._replace(number=0), numbered([2])[0]], 0)
    with pytest.raises(DataLossError, match="must be the output of monolith joiner"):
        read_all(topic_stream(cluster, "poisoned"))
    stream = topic_stream(cluster, "poisoned", max_bad_records=1)
    assert read_all(stream)[0] == [1, 2]
    assert stream.counts.bad == 1


# Sessions


def test_a_task_that_requests_a_missing_stream_raises_an_error_that_names_the_option() -> None:
    with pytest.raises(FailedPreconditionError, match=r"monolith train TASK --stream PLACE"):
        TaskContext().examples(8)


def test_a_task_that_does_not_read_its_stream_is_rejected(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, 1)
    trainer = Trainer(ExampleTask(), hooks=[StreamHook(stream, task="example")])
    with pytest.raises(FailedPreconditionError, match=r"example: .*input_fn did not read it"):
        trainer.train(steps=1)


class PublishedEvents(Hook):
    """Waits for the row of an event while the session waits for more examples, and ends it then."""

    def __init__(self, task: StreamCountingTask, event: int) -> None:
        self.task, self.event = task, event
        self.row = 0.0

    def after_create_session(self, session: HookedSession) -> None:
        self.thread = threading.Thread(target=self._look, args=(session,))
        self.thread.start()

    def _look(self, session: HookedSession) -> None:
        for _ in range(6000):
            self.row = float(self.task.emb.lookup("event", torch.tensor([self.event])).sum())
            if self.row:
                break
            time.sleep(0.01)
        session.request_stop()


def test_rows_that_were_postponed_are_applied_when_the_stream_is_silent(tmp_path: Path) -> None:
    append(tmp_path / "examples-00000", numbered(range(1, 6)))
    stream = stream_of(tmp_path, 1, stop_at_end=False)
    task = StreamCountingTask()
    config = TrainerConfig(input=InputConfig(stream=stream), pipeline=PipelineConfig(postpush=True))
    looking = PublishedEvents(task, 5)
    state = Trainer(task, config, hooks=[StreamHook(stream), looking]).train()
    looking.thread.join()
    assert looking.row == 1.0
    assert state.global_step == 1
