"""Streams of numbered examples in files, for tests."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.checkpoint import load
from monolith.data import Ids, InMemoryDataset, Label, LineIdField, Parser
from monolith.data.protos.example_pb2 import Example
from monolith.online.joiner.examples import NumberedExample, pack_examples
from system.crash.stream_task import COLUMNS, StreamCountingTask, counted_sample

if TYPE_CHECKING:
    from monolith.train import Mode

TASK = "system.crash.stream_task:StreamCountingTask"
TASK_OF_FILES = "online.streams:FileCountingTask"


class FileCountingTask(StreamCountingTask):
    """The same model, trained on events 1 to 20 of an input that is no stream."""

    def input_fn(self, mode: Mode) -> Any:
        records = [each.example for each in numbered(range(1, 21))]
        parser = Parser("example", [*map(Ids, COLUMNS), LineIdField("req_time"), Label()])
        return InMemoryDataset(records).batch(4).parse(parser)


def now_ms() -> int:
    return int(1000 * time.time())


def numbered(numbers: Iterable[int], *, first_event: int = 0, known_ms: int | None = None) -> list[NumberedExample]:
    """Example n of a partition is event `first_event` + n, of item n modulo 7."""
    known = now_ms() if known_ms is None else known_ms
    found = []
    for number in numbers:
        example = Example.FromString(counted_sample(first_event + number, number % 7))
        example.label.append(1.0)
        example.line_id.req_time = known // 1000
        found.append(NumberedExample(number, known, b"request-%d" % number, example.SerializeToString()))
    return found


def append(path: Path, examples: Iterable[NumberedExample]) -> None:
    with path.open("ab") as file:
        file.write(pack_examples(examples))


def events_of(records: Iterable[bytes]) -> list[int]:
    """The events of some records."""
    parsed = [Example.FromString(record) for record in records]
    return [each.named_feature[0].feature.fid_v2_list.value[0] for each in parsed]


def counted(model_dir: Path, events: Iterable[int]) -> list[float]:
    """How often each event was trained, as the newest checkpoint has it."""
    import torch  # noqa: PLC0415 - only here

    task = StreamCountingTask()
    load(task.make_model(), str(model_dir))
    rows: list[float] = task.emb.lookup("event", torch.tensor(list(events))).reshape(-1).tolist()
    return rows
