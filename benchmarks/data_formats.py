"""Measures the formats of samples: ours against the plain ways, alternating, in one run.

    python benchmarks/data_formats.py            # about two minutes
    python benchmarks/data_formats.py --quick    # small inputs: does everything run?

- wire bytes to a `Batch`, for Example and ExampleBatch, with one thread: against protobuf's own Python messages (their
  parser is C, the way from messages to arrays is Python), which must be beaten 10 times, and in MB/s of wire bytes,
  which must be 300;
- TFRecord with checksums, in blocks as a parser takes them: against a plain read of the same file, of which 60 % must
  be reached. The file is in the page cache, so no disk is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith import _core
from monolith.data import (
    DenseColumn,
    Framing,
    Ids,
    Label,
    LineIdField,
    Parser,
    RecordReader,
    Records,
    write_examples,
)
from monolith.data.protos.example_pb2 import Example, ExampleBatch, Feature, FeatureListType
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM_SLOTS = 40
NUM_USER_SLOTS = 15
DENSE_WIDTH = 16
ROUNDS = 7
TURN_SECONDS = 0.5


def main() -> int:
    """Measure and print; 1 when something that must be reached was not."""
    parser = argparse.ArgumentParser(description="Measures the formats of samples.")
    parser.add_argument("--quick", action="store_true", help="small inputs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    _core.set_num_threads(1)
    rows = 64 if args.quick else 1024
    threads = len(os.sched_getaffinity(0))
    print("| measure | ours | peer | ratio | must reach | ok |")
    print("|---|---|---|---|---|---|")
    good = [parse_examples(rows), parse_example_batches(rows)]
    for number in sorted({1, threads}):
        _core.set_num_threads(number)
        good.append(read_tfrecords(rows * (4 if args.quick else 32), number))
    # Checksums are verified by all threads, so what they reach together counts.
    return 0 if good[0] and good[1] and good[-1] else 1


def parse_examples(rows: int) -> bool:
    """Example to Batch."""
    records = [example_of(row).SerializeToString() for row in make_rows(rows)]
    parser = Parser("example", columns())
    block = Records.from_list(records)
    same(parser.parse(block)["slot_3"], python_examples(records)["slot_3"])
    return report_parse(
        "Example to Batch", len(block.buffer), lambda: parser.parse(block), lambda: python_examples(records)
    )


def parse_example_batches(rows: int) -> bool:
    """ExampleBatch to Batch, in records of 128 rows."""
    made = make_rows(rows)
    records = [batch_of(made[at : at + 128]).SerializeToString() for at in range(0, rows, 128)]
    parser = Parser("example_batch", [*(Ids(f"slot_{slot}") for slot in range(NUM_SLOTS)), *dense_columns()])
    block = Records.from_list(records)
    same(parser.parse(block)["slot_3"], python_batches(records)["slot_3"])
    name = "ExampleBatch to Batch"
    return report_parse(name, len(block.buffer), lambda: parser.parse(block), lambda: python_batches(records))


def report_parse(name: str, size: int, ours: Callable[[], object], peer: Callable[[], object]) -> bool:
    """One line of the table for each of the two requirements."""
    rates, peer_rates, ratios = in_turns(ours, peer, size / 1e6)
    speed, ratio = statistics.median(rates), statistics.median(ratios)
    line(
        f"{name}, one thread", speed, ("Python protobuf", statistics.median(peer_rates)), ratio, ">= 10 x", ratio >= 10
    )
    line(f"{name}, one thread", speed, ("", None), None, ">= 300 MB/s", speed >= 300)
    return ratio >= 10 and speed >= 300


def read_tfrecords(rows: int, threads: int) -> bool:
    """TFRecord blocks against a plain read of the file."""
    made = [example_of(row).SerializeToString() for row in make_rows(min(rows, 1024))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "examples.tfrecord"
        write_examples(path, (made[i % len(made)] for i in range(rows)), Framing.TFRECORD)
        size = path.stat().st_size / 1e6

        def ours() -> int:
            with RecordReader(path, Framing.TFRECORD) as reader:
                return sum(len(block) for block in reader.blocks())

        def one_by_one() -> int:
            with RecordReader(path, Framing.TFRECORD) as reader:
                return sum(1 for _ in reader)

        def plain() -> int:
            buffer = bytearray(1 << 20)
            total = 0
            with path.open("rb", buffering=0) as file:
                while got := file.readinto(buffer):
                    total += got
            return total

        if ours() != rows or one_by_one() != rows:
            raise AssertionError("records were lost")
        rates, plain_rates, ratios = in_turns(ours, plain, size)
        single, _, single_ratios = in_turns(one_by_one, plain, size)
    ratio, peer = statistics.median(ratios), ("plain read", statistics.median(plain_rates))
    note = f"{len(made[0])} B records, {threads} threads"
    line(f"TFRecord with checksums, blocks, {note}", statistics.median(rates), peer, ratio, ">= 0.6 x", ratio >= 0.6)
    line(
        f"TFRecord, one bytes each, {note}", statistics.median(single), peer, statistics.median(single_ratios), "", None
    )
    return ratio >= 0.6


def in_turns(
    ours: Callable[[], object], peer: Callable[[], object], work: float
) -> tuple[list[float], list[float], list[float]]:
    """Rates of both in work per second, and their ratio, by round; the order changes from round to round."""
    ours(), peer()
    rates: dict[int, list[float]] = {0: [], 1: []}
    for round_number in range(ROUNDS):
        for which in (0, 1) if round_number % 2 else (1, 0):
            rates[which].append(rate_of((ours, peer)[which], work))
    return rates[0], rates[1], [mine / theirs for mine, theirs in zip(rates[0], rates[1], strict=True)]


def rate_of(call: Callable[[], object], work: float) -> float:
    """Work per second over a turn."""
    calls, begin = 0, time.perf_counter()
    while (seconds := time.perf_counter() - begin) < TURN_SECONDS or not calls:
        call()
        calls += 1
    return calls * work / seconds


def line(
    name: str, ours: float, peer: tuple[str, float | None], ratio: float | None, must: str, ok: bool | None
) -> None:
    """Prints one line of the table."""
    beside = "" if peer[1] is None else f"{peer[0]} {peer[1]:,.0f}"
    shown = "" if ratio is None else f"{ratio:.3g}"
    print(
        f"| {name} | {ours:,.0f} MB/s | {beside} | {shown} | {must} | {'' if ok is None else 'yes' if ok else 'NO'} |"
    )


def make_rows(count: int) -> list[dict[str, list[float]]]:
    """Samples as plain lists: 40 slots of 1 to 8 ids each, dense values, a label."""
    random = np.random.default_rng(1)
    rows = []
    for _ in range(count):
        row: dict[str, list[float]] = {
            f"slot_{slot}": ((slot << 48) + random.integers(1 << 40, size=random.integers(1, 9))).tolist()
            for slot in range(NUM_SLOTS)
        }
        row["dense"] = random.random(DENSE_WIDTH).tolist()
        row["label"] = [float(random.integers(2))]
        rows.append(row)
    return rows


def columns() -> list[Ids | DenseColumn | Label | LineIdField]:
    """What both sides make of an Example."""
    return [*(Ids(f"slot_{slot}") for slot in range(NUM_SLOTS)), *dense_columns(), LineIdField("uid")]


def dense_columns() -> list[DenseColumn | Label]:
    """What both sides make in addition to the ids."""
    return [DenseColumn("dense", width=DENSE_WIDTH), Label()]


def example_of(row: dict[str, list[float]]) -> Example:
    """A sample as a message."""
    example = Example(label=row["label"])
    example.line_id.uid = 7
    for slot in range(NUM_SLOTS):
        feature = example.named_feature.add(name=f"slot_{slot}", id=slot).feature
        feature.fid_v2_list.value.extend(int(number) for number in row[f"slot_{slot}"])
    example.named_feature.add(name="dense").feature.float_list.value.extend(row["dense"])
    return example


def batch_of(rows: list[dict[str, list[float]]]) -> ExampleBatch:
    """Samples as one message; the first slots are the user's and shared."""
    batch = ExampleBatch(batch_size=len(rows))
    for slot in range(NUM_SLOTS):
        is_shared = slot < NUM_USER_SLOTS
        column = batch.named_feature_list.add(name=f"slot_{slot}", id=slot)
        column.type = FeatureListType.SHARED if is_shared else FeatureListType.INDIVIDUAL
        for row in rows[:1] if is_shared else rows:
            column.feature.add().fid_v2_list.value.extend(int(number) for number in row[f"slot_{slot}"])
    for name, source in (("dense", "dense"), ("__LABEL__", "label")):
        column = batch.named_feature_list.add(name=name)
        for row in rows:
            column.feature.add().float_list.value.extend(row[source])
    return batch


def python_examples(records: Sequence[bytes]) -> dict[str, Ragged | torch.Tensor]:
    """The same columns by protobuf's messages and lists."""
    ids: dict[str, list[int]] = {f"slot_{slot}": [] for slot in range(NUM_SLOTS)}
    lengths: dict[str, list[int]] = {name: [] for name in ids}
    dense, labels, uids = [], [], []
    for record in records:
        example = Example.FromString(record)
        features = {named.name: named.feature for named in example.named_feature}
        for name, column in ids.items():
            values = features[name].fid_v2_list.value
            column.extend(values)
            lengths[name].append(len(values))
        dense.append(list(features["dense"].float_list.value))
        labels.append(list(example.label))
        uids.append(example.line_id.uid)
    return {
        **raggeds(ids, lengths),
        "dense": torch.tensor(dense),
        "label": torch.tensor(labels),
        "uid": torch.tensor(uids),
    }


def python_batches(records: Sequence[bytes]) -> dict[str, Ragged | torch.Tensor]:
    """The same columns of batches by protobuf's messages and lists."""
    ids: dict[str, list[int]] = {f"slot_{slot}": [] for slot in range(NUM_SLOTS)}
    lengths: dict[str, list[int]] = {name: [] for name in ids}
    dense: list[list[float]] = []
    labels: list[list[float]] = []
    for record in records:
        batch = ExampleBatch.FromString(record)
        lists = {named.name: named for named in batch.named_feature_list}
        for name, column in ids.items():
            for feature in rows_of(lists[name].feature, batch.batch_size):
                values = feature.fid_v2_list.value
                column.extend(values)
                lengths[name].append(len(values))
        dense.extend(list(feature.float_list.value) for feature in lists["dense"].feature)
        labels.extend(list(feature.float_list.value) for feature in lists["__LABEL__"].feature)
    return {**raggeds(ids, lengths), "dense": torch.tensor(dense), "label": torch.tensor(labels)}


def rows_of(features: Sequence[Feature], rows: int) -> list[Feature]:
    """One feature for each row, of a shared column too."""
    return list(features) if len(features) == rows else [features[0]] * rows


def raggeds(ids: dict[str, list[int]], lengths: dict[str, list[int]]) -> dict[str, Ragged | torch.Tensor]:
    """Ragged columns out of lists."""
    return {
        name: Ragged.from_lengths(torch.from_numpy(np.array(values, dtype=np.int64)), lengths[name])
        for name, values in ids.items()
    }


def same(ours: object, peer: object) -> None:
    """Both sides must have made the same."""
    if not (isinstance(ours, Ragged) and isinstance(peer, Ragged) and ours.to_lists() == peer.to_lists()):
        raise AssertionError("ours and protobuf's differ")


if __name__ == "__main__":
    sys.exit(main())
