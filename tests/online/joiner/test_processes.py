"""Joiner processes that are killed, whose number changes, and that are asked how far they are: every event once."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Consumer, TopicPartition

from checkpoint.zygote import Zygote
from kafka_cluster import NUM_PARTITIONS, KafkaCluster
from monolith.online.joiner.examples import NumberedExample
from online.joiner.joins import append, outcome, traffic
from online.joiner.places import (
    consumed,
    examples_of,
    make_topics,
    partition_of,
    wait_for,
    write_traffic,
)

CHILD = """
import sys
from monolith import cli
sys.stdout = sys.stderr = open(arguments[0], "a")
assert cli.main(["joiner", *arguments[1:], "--window_seconds=1", "--disorder_seconds=0.05", "--idle_seconds=3600",
    "--memory_bytes=65536"]) == 0
print("ended well", flush=True)
"""


class Place(Protocol):
    """Files or topics."""

    num_partitions: int

    def arguments(self) -> list[str]:
        """What a process is told."""
        ...

    def write(self, kind: str, records: list[bytes]) -> None: ...

    def size(self) -> int:
        """Of the output: grows with every example."""
        ...

    def found(self) -> list[list[NumberedExample]]:
        """The output of each partition."""
        ...


class Files:
    num_partitions = 6

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def arguments(self) -> list[str]:
        places = {"impressions": "impressions", "actions": "actions", "output": "examples"}
        given = [f"--{name}={self._folder / file}-{{partition}}" for name, file in places.items()]
        return [*given, f"--partitions={self.num_partitions}", f"--state_dir={self._folder / 'state'}"]

    def write(self, kind: str, records: list[bytes]) -> None:
        for record in records:
            append(self._folder / f"{kind}-{partition_of(record, self.num_partitions):05d}", [record])

    def size(self) -> int:
        return sum(path.stat().st_size for path in self._folder.glob("examples-*"))

    def found(self) -> list[list[NumberedExample]]:
        return examples_of(self._folder, self.num_partitions)


class Topics:
    num_partitions = NUM_PARTITIONS

    def __init__(self, folder: Path, cluster: KafkaCluster) -> None:
        self._folder, self._cluster = folder, cluster
        make_topics(cluster, folder)
        self._asking = Consumer({"bootstrap.servers": cluster.brokers, "group.id": "test"})

    def arguments(self) -> list[str]:
        places = f"kafka://{self._cluster.brokers}/{self._folder.name}"
        given = [f"--{name}={places}-{name}" for name in ("impressions", "actions", "output")]
        return [*given, f"--state_dir={self._folder / 'state'}"]

    def write(self, kind: str, records: list[bytes]) -> None:
        for partition in range(self.num_partitions):
            mine = [record for record in records if partition_of(record, self.num_partitions) == partition]
            self._cluster.write(f"{self._folder.name}-{kind}", mine, partition=partition)

    def size(self) -> int:
        places = [TopicPartition(f"{self._folder.name}-output", each) for each in range(self.num_partitions)]
        return sum(self._asking.get_watermark_offsets(each, timeout=30)[1] for each in places)

    def found(self) -> list[list[NumberedExample]]:
        """What a reader sees that takes only rising numbers: messages on their way may arrive behind a successor's."""
        self._asking.close()
        return [list(rising(part)) for part in consumed(self._cluster, f"{self._folder.name}-output")]


def rising(examples: list[NumberedExample]) -> Iterator[NumberedExample]:
    last = 0
    for each in examples:
        if each.number > last:
            last = each.number
            yield each


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as running:
        yield running


PLACES: Mapping[str, Callable[[Path, KafkaCluster], Place]] = {"files": lambda path, _: Files(path), "topics": Topics}
PROCESSES = {"files": (1, 3, 2, 3, 1, 2), "topics": (1, 3, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "topics"])
def test_n_processes_continue_what_m_began_although_all_are_killed(
    tmp_path: Path, zygote: Zygote, cluster: KafkaCluster, kind: str
) -> None:
    place = PLACES[kind](tmp_path, cluster)
    impressions, actions, expected = traffic(1200)
    lives = PROCESSES[kind]
    for life, count in enumerate(lives):  # while one part of the events comes, all are killed at any moment
        said = [tmp_path / f"said-{life}-{each}" for each in range(count)]
        options = [*place.arguments(), f"--num_joiners={count}"]
        children = [zygote.start(CHILD, str(each), *options, beside=True) for each in said]
        before = place.size()
        for name, records in (("impressions", impressions), ("actions", actions)):
            place.write(
                name, [each for each in records if partition_of(each, 10**9) * len(lives) // len(impressions) == life]
            )
        wait_for(lambda before=before: place.size() > before)  # type: ignore[misc]
        time.sleep(0.01 * (life % 4))
        assert [zygote.end(child) for child in children] == [-signal.SIGKILL] * count, said[0].read_text()
    for life in range(2):
        said = [tmp_path / f"said-last-{life}"]
        _, status = zygote.run(CHILD, str(said[0]), *place.arguments(), "--stop_at_end", "--num_joiners=1")
        assert status == 0, said[0].read_text()
    found = place.found()
    assert all([each.number for each in part] == list(range(1, len(part) + 1)) for part in found)
    assert outcome(example for part in found for example in part) == expected
    counts = committed_counts(tmp_path / "state")
    assert (counts["impressions"], counts["actions"]) == (len(impressions), len(actions))
    others = ("duplicate_impressions", "duplicate_actions", "late_impressions", "late_actions", "unmatched_actions")
    assert {name: counts[name] for name in others} == dict.fromkeys(others, 0)


def committed_counts(folder: Path) -> Counter[str]:
    """Of all partitions."""
    counts = Counter[str]()
    for path in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as database:
            ((head,),) = database.execute("SELECT value FROM head WHERE id = 0")
        counts.update(json.loads(head)["counts"])
    return counts


@pytest.mark.slow
def test_a_joiner_reports_its_progress_and_a_signal_stops_it_between_two_steps(tmp_path: Path, zygote: Zygote) -> None:
    write_traffic(tmp_path, 100, Files.num_partitions)
    said = tmp_path / "said"
    arguments = [*Files(tmp_path).arguments(), "--metrics_port=0"]
    child = zygote.start(CHILD, str(said), *arguments, beside=True)
    wait_for(lambda: said.exists() and "joining partitions 0, 1, 2, 3, 4, 5" in said.read_text())
    port = int(re.findall(r"metrics on port (\d+)", said.read_text())[0])

    def told() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def shown() -> float:
        return sum(value for name, value in told().items() if name.startswith("monolith_joiner_impressions{"))

    wait_for(lambda: shown() == 100)
    found = told()
    assert 0 < sum(value for name, value in found.items() if "joiner_waiting_keys{" in name) <= 100
    assert all(value > 86_400 for name, value in found.items() if "joiner_lag_seconds{" in name)
    os.kill(child, signal.SIGTERM)
    wait_for(lambda: "ended well" in said.read_text())
    zygote.end(child)
