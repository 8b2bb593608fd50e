"""Joiner processes: they share partitions, die and are started again, over files and over topics."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_cluster import NUM_PARTITIONS, KafkaCluster
from monolith import cli
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.files import LocalStorage
from monolith.observe import process_recorder
from monolith.online.joiner import Joiner, JoinerConfig, service, topics
from monolith.online.joiner.endpoints import KafkaPlace
from monolith.online.joiner.examples import whole_examples
from monolith.online.joiner.partition import JoinPartition
from online.joiner.joins import append, outcome, traffic
from online.joiner.places import (
    consumed,
    examples_of,
    folder_config,
    make_topics,
    partition_of,
    topic_config,
    write_traffic,
)


def test_a_process_without_partitions_waits_for_one_that_becomes_free(tmp_path: Path) -> None:
    expected = write_traffic(tmp_path, 50, 1)
    state = LocalStorage(tmp_path / "state")
    state.make()
    lock = state.lock("partition-00000.lock")
    assert lock is not None
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


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as running:
        yield running


def stop_behind_the_first_half(joiner: Joiner) -> None:
    if joiner.counts.impressions == 100:
        joiner.stop()


@pytest.mark.slow
def test_topics_are_joined_once_also_by_a_process_that_comes_after_another_and_by_policy_without_poison(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    impressions, actions, expected = traffic(200)
    make_topics(cluster, tmp_path)
    halves: tuple[tuple[list[bytes], list[bytes]], ...] = ((impressions[:100], []), (impressions[100:], actions))
    for at_end, half in enumerate(halves):
        for name, records in zip(("impressions", "actions"), half, strict=True):
            for partition in range(NUM_PARTITIONS):
                mine = [record for record in records if partition_of(record, NUM_PARTITIONS) == partition]
                cluster.write(f"{tmp_path.name}-{name}", mine, partition=partition)
        joiner = Joiner(topic_config(cluster, tmp_path, stop_at_end=bool(at_end), max_bad_records=at_end))
        joiner.run(stop_behind_the_first_half if at_end == 0 else lambda _: None)
        if at_end == 0:
            cluster.write(f"{tmp_path.name}-impressions", [b"\xff\xff"], partition=2)
            with pytest.raises(DataLossError, match="partition 2: offset 25: 2 bytes that are no JoinEvent"):
                Joiner(topic_config(cluster, tmp_path, stop_at_end=False)).run()
    assert joiner.counts.bad == 1
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


def test_the_command_joins_and_reports_its_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "was created with mode 'wait', got 'fast_emit'" in capsys.readouterr().err
    assert cli.main([*arguments, "--label_actions=x"]) == 1
    assert "--label_actions takes numbers of actions" in capsys.readouterr().err
    assert cli.main([*arguments, "--kafka=a=b"]) == 1
    assert "kafka has settings, but no place is a topic" in capsys.readouterr().err


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


def test_an_output_whose_topic_was_recreated_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Client:
        def __init__(self, *_: object) -> None: ...

        def watermarks(self, partitions: list[Any]) -> dict[Any, tuple[int, int]]:
            return dict.fromkeys(partitions, (0, 3))

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(topics, "KafkaClient", Client)
    output = topics.TopicOutput(KafkaPlace("localhost:1", "examples"), 0, {})
    with pytest.raises(DataLossError, match="ends at offset 3, 4 messages were written; the topic was recreated"):
        output.open(4)
    assert closed == [True]


def test_a_joiner_without_input_pauses_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_PAUSE_SECONDS", 60.0)
    looks: list[int] = []
    joiner = Joiner(folder_config(tmp_path, 1, stop_at_end=False))

    def step(_: object) -> bool:
        looks.append(len(looks))
        if len(looks) == 3:
            stop.start()
        return len(looks) < 3

    stop = threading.Timer(0.2, joiner.stop)
    monkeypatch.setattr(JoinPartition, "step", step)
    write_traffic(tmp_path, 1, 1)
    joiner.run()
    assert looks == [0, 1, 2], "two that found something, one that did not, and the pause"
