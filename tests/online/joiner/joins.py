"""Joins in a folder, for tests: events in files, and what has to come out."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from monolith.data.clicks import CountedDraws
from monolith.data.protos.example_pb2 import Example
from monolith.data.records.bad_records import BadRecords
from monolith.data.records.framing import Framing
from monolith.online.joiner.events import action_record, impression_record
from monolith.online.joiner.examples import ExampleWriter, NumberedExample, split_examples
from monolith.online.joiner.files import FileInput, FileOutput
from monolith.online.joiner.partition import JoinPartition
from monolith.online.joiner.rules import JoinRuleConfig
from monolith.online.joiner.state import PartitionState
from monolith.testing import FakeClock

START_MS = 1_700_000_000_000
CLICK = 1
RULES = JoinRuleConfig(window_seconds=1.0, disorder_seconds=0.05, idle_seconds=5.0)


def sample(number: int) -> bytes:
    example = Example()
    example.named_feature.add(name="number").feature.int64_list.value.append(number)
    return example.SerializeToString()


def number_of(example: Example) -> int:
    return int(example.named_feature[0].feature.int64_list.value[0])


def framed(records: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(record)) + record for record in records)


def append(path: Path, records: Iterable[bytes]) -> None:
    with path.open("ab") as file:
        file.write(framed(records))


def traffic(count: int, *, seed: int = 0) -> tuple[list[bytes], list[bytes], Counter[tuple[int, float]]]:
    """Impressions, actions, and what a plain join makes of them: the number of a sample and its label."""
    draws = CountedDraws(seed)
    clicked_share, delays = draws.uniform(0, np.arange(count)), draws.uniform(1, np.arange(count))
    impressions, actions, expected = [], [], Counter[tuple[int, float]]()
    for number in range(count):
        request, time_ms = b"request-%d" % number, START_MS + 10 * number
        impressions.append(impression_record(request, number, time_ms=time_ms, sample=sample(number)))
        clicked = bool(clicked_share[number] < 0.3)
        if clicked:
            at = time_ms + int(1000 * delays[number])
            actions.append((at, action_record(request, number, time_ms=at, actions=[CLICK])))
        expected[number, float(clicked)] += 1
    return impressions, [record for _, record in sorted(actions)], expected


def outcome(examples: Iterable[NumberedExample]) -> Counter[tuple[int, float]]:
    """The number of each sample, and its label."""
    parsed = [Example.FromString(each.example) for each in examples]
    return Counter((number_of(each), each.label[0]) for each in parsed)


class FolderJoin:
    """One partition over files of a folder; may be opened again and again."""

    def __init__(self, folder: Path, rules: JoinRuleConfig = RULES, **options: Any) -> None:
        self.impressions, self.actions = folder / "impressions", folder / "actions"
        self.output, self.state = folder / "examples", folder / "state.sqlite"
        self.rules = rules
        self.clock = FakeClock()
        self.clock.advance(START_MS / 1000 + 86_400 - self.clock.now())
        self.bad_limit = 0
        self.batch_records = 50
        self.memory_bytes = 1 << 30
        self.max_bytes: int | None = None
        self.identity: dict[str, Any] = {"mode": rules.mode}
        self.__dict__.update(options)

    def partition(self) -> JoinPartition:
        bad = BadRecords(self.bad_limit)
        state = PartitionState(
            str(self.state), identity=self.identity, memory_bytes=self.memory_bytes, max_bytes=self.max_bytes
        )
        return JoinPartition(
            ExampleWriter(self.rules),
            inputs={
                "impressions": FileInput(str(self.impressions), Framing.PLAIN, bad),
                "actions": FileInput(str(self.actions), Framing.PLAIN, bad),
            },
            output=FileOutput(str(self.output)),
            state=state,
            bad=bad,
            clock=self.clock,
            batch_records=self.batch_records,
        )

    def run(self, *, drain: bool = True) -> JoinPartition:
        """Everything that is there now."""
        partition = self.partition()
        try:
            partition.open()
            while partition.step() or not partition.is_at_end():
                pass
            if drain:
                partition.drain()
        finally:
            partition.close()
        return partition

    def examples(self) -> list[NumberedExample]:
        return list(split_examples(self.output.read_bytes()))
