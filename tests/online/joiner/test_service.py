"""Joiner processes: they share partitions, die and are started again, over files and over topics."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from checkpoint.zygote import Zygote
from kafka_cluster import NUM_PARTITIONS, KafkaCluster
from monolith import cli
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.observe import process_recorder
from monolith.online.joiner import Joiner, JoinerConfig, JoinRules
from monolith.online.joiner.events import decode_event, request_of
from monolith.online.joiner.locks import PartitionLock
from monolith.online.joiner.numbered import NumberedExample, split_examples, whole_examples
from monolith.online.joiner.topics import NUMBER_HEADER
from online.joiner.joins import append, outcome, traffic

RULES: dict[str, Any] = {"window_seconds": 1.0, "disorder_seconds": 0.05, "idle_seconds": 3600.0}


def write_traffic(folder: Path, count: int, partitions: int) -> Counter[tuple[int, float]]:
    """Events by partition: those of request n in partition n modulo their number."""
    impressions, actions, expected = traffic(count)
    for record in impressions:
        append(folder / f"impressions-{_partition(record, partitions):05d}", [record])
    for record in actions:
        append(folder / f"actions-{_partition(record, partitions):05d}", [record])
    return expected


def _partition(record: bytes, partitions: int) -> int:
    return int(request_of(decode_event(record).key).removeprefix(b"request-")) % partitions


def folder_config(folder: Path, partitions: int, **options: Any) -> JoinerConfig:
    places: dict[str, Any] = {name: str(folder / f"{name}-{{partition}}") for name in ("impressions", "actions")}
    return JoinerConfig(
        **places,
        output=str(folder / "examples-{partition}"),
        state_dir=str(folder / "state"),
        partitions=partitions,
        **{"rules": JoinRules(**RULES), "stop_at_end": True, **options},
    )


def examples_of(folder: Path, partitions: int) -> list[list[NumberedExample]]:
    return [list(split_examples((folder / f"examples-{each:05d}").read_bytes())) for each in range(partitions)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def test_n_processes_continue_what_m_began(tmp_path: Path) -> None:
    expected = write_traffic(tmp_path, 400, 4)
    one = Joiner(folder_config(tmp_path, 4, num_joiners=4))
    one.run()
    assert one.partitions == [0]
    two, three = (Joiner(folder_config(tmp_path, 4, num_joiners=2)) for _ in range(2))
    threads = [threading.Thread(target=each.run) for each in (two, three)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    taken = two.partitions + three.partitions
    assert len(two.partitions) <= 2
    assert len(three.partitions) <= 2
    Joiner(folder_config(tmp_path, 4)).run()
    assert set(taken) <= set(range(4))
    found = examples_of(tmp_path, 4)
    assert all([each.number for each in part] == list(range(1, len(part) + 1)) for part in found)
    assert outcome(example for part in found for example in part) == expected


def test_a_process_without_partitions_waits_for_one_that_becomes_free(tmp_path: Path) -> None:
    expected = write_traffic(tmp_path, 50, 1)
    lock = PartitionLock(str(tmp_path / "state" / "partition-00000.lock"))
    assert lock.acquire()
    waiting = Joiner(folder_config(tmp_path, 1))
    told = threading.Event()
    thread = threading.Thread(target=waiting.run, args=(lambda _: told.set(),))
    thread.start()
    assert told.wait(60)
    assert waiting.partitions == []
    lock.release()
    thread.join(120)
    assert outcome(examples_of(tmp_path, 1)[0]) == expected


def test_the_first_failure_of_a_partition_ends_all(tmp_path: Path) -> None:
    write_traffic(tmp_path, 40, 2)
    append(tmp_path / "actions-00001", [b"\xff\xff"])
    with pytest.raises(DataLossError, match=r"actions-00001': offset \d+: 2 bytes that are no JoinEvent"):
        Joiner(folder_config(tmp_path, 2, stop_at_end=False)).run()
    fewer = Joiner(folder_config(tmp_path, 2, max_bad_records=1))
    fewer.run()
    assert fewer.counts.bad == 1
    assert process_recorder().gauge("monolith.joiner.bad", {"partition": 1}) == 1


CHILD = """
import sys
from pathlib import Path
from monolith import cli
folder = Path(arguments[0])
sys.stdout = sys.stderr = open(folder / "said", "a")
places = [f"--{name}={folder / name}-{{partition}}" for name in ("impressions", "actions")]
assert cli.main(["joiner", *places, f"--output={folder / 'examples'}-{{partition}}", "--partitions=2",
    f"--state_dir={folder / 'state'}", "--window_seconds=1", "--disorder_seconds=0.05", "--idle_seconds=3600",
    "--num_joiners=2", "--memory_bytes=65536", *arguments[1:]]) == 0
"""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as running:
        yield running


def _sizes(folder: Path) -> int:
    return sum(path.stat().st_size for path in [*folder.glob("examples-*"), *(folder / "state").glob("*-wal")])


def test_every_event_is_joined_once_although_processes_are_killed(tmp_path: Path, zygote: Zygote) -> None:
    impressions, actions, expected = traffic(2000)
    events = sorted([*impressions, *actions], key=lambda record: _partition(record, 10**9))
    children: list[int] = []
    for part in range(10):  # while one part of the events comes, both processes are killed at any moment
        children = [zygote.start(CHILD, str(tmp_path), beside=True) for _ in range(2)]
        before = _sizes(tmp_path)
        for record in events[part * len(events) // 10 : (part + 1) * len(events) // 10]:
            kind = "impressions" if record in set_of(impressions) else "actions"
            append(tmp_path / f"{kind}-{_partition(record, 2):05d}", [record])
        wait_for(lambda before=before: _sizes(tmp_path) > before)  # type: ignore[misc]
        time.sleep(0.01 * (part % 4))
        assert [zygote.end(child) for child in children] == [-signal.SIGKILL] * 2
    _, status = zygote.run(CHILD, str(tmp_path), "--stop_at_end", "--num_joiners=1")
    assert status == 0
    found = examples_of(tmp_path, 2)
    assert all([each.number for each in part] == list(range(1, len(part) + 1)) for part in found)
    assert outcome(example for part in found for example in part) == expected


def set_of(records: list[bytes], known: dict[int, frozenset[bytes]] = {}) -> frozenset[bytes]:  # noqa: B006 - a cache
    return known.setdefault(id(records), frozenset(records))


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as running:
        yield running


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
        **places, state_dir=str(folder), **{"rules": JoinRules(**RULES), "stop_at_end": True, **options}
    )


def stop_behind_the_first_half(joiner: Joiner) -> None:
    if joiner.counts.impressions == 100:
        joiner.stop()


def test_topics_are_joined_once_also_by_a_process_that_comes_after_another(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    impressions, actions, expected = traffic(200)
    make_topics(cluster, tmp_path)
    halves: tuple[tuple[list[bytes], list[bytes]], ...] = ((impressions[:100], []), (impressions[100:], actions))
    for at_end, half in enumerate(halves):
        for name, records in zip(("impressions", "actions"), half, strict=True):
            for partition in range(NUM_PARTITIONS):
                mine = [record for record in records if _partition(record, NUM_PARTITIONS) == partition]
                cluster.write(f"{tmp_path.name}-{name}", mine, partition=partition)
        joiner = Joiner(topic_config(cluster, tmp_path, stop_at_end=bool(at_end)))
        joiner.run(stop_behind_the_first_half if at_end == 0 else lambda _: None)
    found = consumed(cluster, f"{tmp_path.name}-output")
    assert all([each.number for each in part] == list(range(1, len(part) + 1)) for part in found)
    assert outcome(example for part in found for example in part) == expected
    assert found[0][0].request.startswith(b"request-")
    # A state that has not noted what is in the output finds it there.
    Joiner(topic_config(cluster, tmp_path)).run()
    assert consumed(cluster, f"{tmp_path.name}-output") == found


def test_topics_that_do_not_fit_together_are_refused(cluster: KafkaCluster, tmp_path: Path) -> None:
    make_topics(cluster, tmp_path)
    with pytest.raises(InvalidArgumentError, match="has 4 partitions, expected 2: events of one request"):
        Joiner(topic_config(cluster, tmp_path, partitions=2)).run()


def test_the_command_joins_and_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = write_traffic(tmp_path, 60, 1)
    arguments = ["joiner", f"--impressions={tmp_path}/impressions-{{partition}}", "--partitions=1", "--stop_at_end"]
    arguments += [f"--actions={tmp_path}/actions-{{partition}}", f"--output={tmp_path}/examples-{{partition}}"]
    arguments += [f"--state_dir={tmp_path}/state", "--window_seconds=1", "--label_actions=1", "--label_actions=2,3"]
    assert cli.main([*arguments, "--json"]) == 0
    told = capsys.readouterr()
    counts = json.loads(told.out)
    assert counts["positives"] + counts["negatives"] == 60
    assert "joining partitions 0" in told.err
    examples, _ = whole_examples((tmp_path / "examples-00000").read_bytes())
    assert outcome(examples) == expected
    assert cli.main([*arguments, "--mode=fast_emit", "--negative_action=0"]) == 1
    assert "was begun with mode 'wait', got 'fast_emit'" in capsys.readouterr().err
    assert cli.main([*arguments, "--label_actions=x"]) == 1
    assert "--label_actions takes numbers of actions" in capsys.readouterr().err
    assert cli.main([*arguments, "--kafka=a=b"]) == 1
    assert "kafka has settings, but no place is a topic" in capsys.readouterr().err


def test_a_signal_ends_it_between_two_steps(tmp_path: Path, zygote: Zygote) -> None:
    write_traffic(tmp_path, 100, 2)
    child = zygote.start(CHILD + "print('ended well', flush=True)\n", str(tmp_path), beside=True)
    said = tmp_path / "said"
    wait_for(lambda: said.exists() and "joining partitions" in said.read_text())
    os.kill(child, signal.SIGTERM)
    wait_for(lambda: "ended well" in said.read_text())
    zygote.end(child)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"impressions": "plain"}, "a path with {partition} in it"),
        ({"impressions": "kafka://b"}, "kafka://HOST:PORT"),
        ({"impressions": "a-{partition}"}, "three different places"),
        ({"partitions": None}, "partitions must be given"),
        ({"kafka": {"a": "b"}}, "no place is a topic"),
        ({"sample": "example_batch"}, "EXAMPLE or INSTANCE"),
    ],
)
def test_configs_that_cannot_work_are_refused(options: dict[str, Any], text: str) -> None:
    whole: dict[str, Any] = {
        "impressions": "i-{partition}",
        "actions": "a-{partition}",
        "output": "o-{partition}",
        "partitions": 2,
    }
    with pytest.raises(ValueError, match=text):
        Joiner(JoinerConfig(**{**whole, "state_dir": "s", **options}))
