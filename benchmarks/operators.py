"""Measures operators on batches against loops over samples that do the same, alternating, in one run.

    python benchmarks/operators.py            # about a minute
    python benchmarks/operators.py --quick    # small batches: does everything run?

The loops work on samples that are plain Python dictionaries of lists and numbers already; what it takes to make those
of messages is not counted. A batch of tensors is what training needs, so the ratio is to the loop with the way from
samples to tensors after it, once for each operator; the loop alone, which moves references where an operator moves
values, is printed, too. Both sides are checked to give the same before the clock starts, as far as chance is not part
of it. Rates are samples per second on one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith.data import INVALID_LABEL, Batch
from monolith.data.operators import (
    AddLabel,
    CrossIds,
    HasAnyId,
    InShare,
    InstanceReweight,
    LabelUpperBound,
    NegativeGen,
    NegativeSampling,
    PoolConfig,
    SwitchSlot,
    Value,
)
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM_SLOTS = 26
ROUNDS = 5
TURN_SECONDS = 0.4
MASK_48 = (1 << 48) - 1

Row = dict[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measures operators on batches.")
    parser.add_argument("--quick", action="store_true", help="small batches")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = 256 if args.quick else 4096
    batch = make_batch(rows)
    samples = rows_of(batch)
    print(f"{rows} samples, {NUM_SLOTS} slots of ids\n")
    print("| operator | samples/s | loop and tensors | ratio | loop alone |")
    print("|---|---|---|---|---|")
    for case in cases():
        if case.same is not None and not case.same(case.ours(batch), case.loop(samples)):
            raise AssertionError(f"{case.name}: the two differ")
        calls = [partial(case.ours, batch), partial(loop_to_tensors, case, samples), partial(case.loop, samples)]
        ours, loop, bare = in_turns(calls, rows)
        ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, loop, strict=True))
        rates = [f"{statistics.median(each) / 1e6:.3f} M" for each in (ours, loop, bare)]
        print(f"| {case.name} | {rates[0]} | {rates[1]} | {ratio:.0f} x | {rates[2]} |", flush=True)


@dataclass(frozen=True)
class Case:
    """An operator and the loop that it is compared with."""

    name: str
    ours: Callable[[Batch], Any]
    loop: Callable[[list[Row]], Any]
    same: Callable[[Any, Any], bool] | None = None


def cases() -> list[Case]:
    """What is measured."""
    wanted = tuple(range(0, 1000, 3))
    pool_rows = [f"slot_{slot}" for slot in range(10, 20)]
    negatives = NegativeGen(
        NegativeSampling(tuple(pool_rows), num_negatives=4, limits=PoolConfig(max_items=20_000, start_items=100))
    )
    return [
        Case(
            "filter by ids, half the rows",
            HasAnyId("slot_3", ids=wanted),
            lambda rows: filter_ids(rows, set(wanted)),
            lambda made, rows: int(made.num_rows) == len(rows),
        ),
        Case(
            "filter by value and label",
            Value("req_time", op="ge", operand=1_700_000_500) & Value("label", op="gt", operand=0.5),
            lambda rows: [row for row in rows if row["req_time"] >= 1_700_000_500 and row["label"][0] > 0.5],
            lambda made, rows: int(made.num_rows) == len(rows),
        ),
        Case("sample half the rows", InShare(end=0.5), sample_half),
        Case(
            "labels of two tasks",
            AddLabel.from_text("1,2:3;4"),
            add_labels,
            lambda made, rows: bool(made["label"].tolist() == [row["label"] for row in rows]),
        ),
        Case(
            "label upper bound",
            LabelUpperBound((0.5,)),
            lambda rows: [{**row, "label": [min(row["label"][0], 0.5)]} for row in rows],
            lambda made, rows: bool(made["label"].tolist() == [row["label"] for row in rows]),
        ),
        Case(
            "cross of two slots",
            CrossIds("slot_1", "slot_2", slot=100),
            cross,
            lambda made, rows: bool(made["slot_1-slot_2"].to_lists() == [row["cross"] for row in rows]),
        ),
        Case(
            "switch the slots of all ids",
            SwitchSlot({f"slot_{slot}": slot + 100 for slot in range(NUM_SLOTS)}),
            switch,
            lambda made, rows: bool(made["slot_5"].to_lists() == [row["slot_5"] for row in rows]),
        ),
        Case(
            "repeat by actions",
            InstanceReweight((1, 2, 3), weights={1: 2, 4: 2}, labels={1: 1.0, 2: 1.0, 3: 0.0}, pre_actions=None),
            reweight,
            lambda made, rows: int(made.num_rows) == len(rows),
        ),
        Case("4 negatives of each positive", negatives, NegativeLoop(pool_rows, 4)),
    ]


def filter_ids(rows: list[Row], wanted: set[int]) -> list[Row]:
    """The rows with one of the ids."""
    return [row for row in rows if any(number in wanted for number in row["slot_3"])]


def sample_half(rows: list[Row]) -> list[Row]:
    """About half the rows, by a hash of their keys."""
    return [row for row in rows if hash((row["uid"], row["item_id"], row["req_time"])) % 1000 < 500]


def add_labels(rows: list[Row]) -> list[Row]:
    """Two labels out of the actions."""
    made = []
    for row in rows:
        actions = set(row["actions"])
        first = row["label"][0] if row["label"][0] > 0 else INVALID_LABEL
        one = 1.0 if actions & {1, 2} else 0.0 if 3 in actions else INVALID_LABEL
        made.append({**row, "label": [first, one, 1.0 if 4 in actions else 0.0], "sample_rate": 1.0})
    return made


def cross(rows: list[Row]) -> list[Row]:
    """All pairs of two slots, hashed."""
    made = []
    for row in rows:
        pairs = []
        for left in row["slot_1"]:
            for right in row["slot_2"]:
                product = left * right % (1 << 128)
                pairs.append(100 << 48 | (product >> 64 ^ product) & MASK_48)
        made.append({**row, "cross": pairs})
    return made


def switch(rows: list[Row]) -> list[Row]:
    """Every id in another slot."""
    return [
        {
            **row,
            **{
                f"slot_{slot}": [(slot + 100) << 48 | number & MASK_48 for number in row[f"slot_{slot}"]]
                for slot in range(NUM_SLOTS)
            },
        }
        for row in rows
    ]


def reweight(rows: list[Row]) -> list[Row]:
    """Copies by the first action and by those that are not in the list."""
    made = []
    for row in rows:
        if not row["actions"]:
            made.append(row)
            continue
        top = next((action for action in (1, 2, 3) if action in row["actions"]), None)
        if top is None:
            continue
        count = 2 if top == 1 else 1
        for action in row["actions"]:
            count *= 2 if action == 4 else 1
        made += [{**row, "label": [1.0 if top < 3 else 0.0]}] * count
    return made


class NegativeLoop:
    """A pool in dictionaries, and negatives one by one."""

    def __init__(self, columns: list[str], count: int) -> None:
        self._columns, self._count = columns, count
        self._items: dict[int, Row] = {}
        self._ids: list[int] = []
        self._random = np.random.default_rng(0)

    def __call__(self, rows: list[Row]) -> list[Row]:
        """Negatives in front of each positive."""
        made: list[Row] = []
        for row in rows:
            if row["item_id"] not in self._items:
                self._items[row["item_id"]] = {name: row[name] for name in self._columns}
                self._ids.append(row["item_id"])
            if row["label"][0] == 1.0:
                for at in self._random.integers(len(self._ids), size=self._count).tolist():
                    item = self._ids[at]
                    made.append({**row, **self._items[item], "item_id": item, "label": [0.0]})
            made.append(row)
        return made


def make_batch(rows: int) -> Batch:
    """Samples with ids, actions, a label and line id fields."""
    random = np.random.default_rng(7)
    columns: dict[str, Any] = {
        f"slot_{slot}": Ragged.from_lengths(
            torch.from_numpy(random.integers(0, 2000, int(lengths.sum())) | (slot << 48 if slot != 3 else 0)),
            torch.from_numpy(lengths),
        )
        for slot, lengths in ((slot, random.integers(1, 4, rows)) for slot in range(NUM_SLOTS))
    }
    lengths = random.integers(0, 3, rows)
    columns["actions"] = Ragged.from_lengths(
        torch.from_numpy(random.integers(1, 6, int(lengths.sum()))), torch.from_numpy(lengths)
    )
    columns["label"] = torch.from_numpy((random.random(rows) < 0.2).astype(np.float32))[:, None]
    columns["uid"] = torch.from_numpy(random.integers(0, 1 << 40, rows))
    columns["item_id"] = torch.from_numpy(random.integers(1, 10_000, rows))
    columns["req_time"] = torch.from_numpy(1_700_000_000 + random.integers(0, 1000, rows))
    return Batch(columns, num_rows=rows)


def rows_of(batch: Batch) -> list[Row]:
    """The samples as dictionaries."""
    lists = {
        name: values.to_lists() if isinstance(values, Ragged) else values.tolist()
        for name, values in batch.items()
        if not isinstance(values, list)
    }
    return [{name: values[row] for name, values in lists.items()} for row in range(batch.num_rows)]


def tensors_of(rows: list[Row]) -> Batch:
    """The samples as a batch."""
    columns: dict[str, Any] = {}
    for name, value in rows[0].items():
        values = [row[name] for row in rows]
        if name == "label":
            columns[name] = torch.tensor(values)
        else:
            columns[name] = Ragged.from_lists(values) if isinstance(value, list) else torch.tensor(values)
    return Batch(columns, num_rows=len(rows))


def loop_to_tensors(case: Case, samples: list[Row]) -> Batch:
    """The loop, followed by the conversion to tensors."""
    return tensors_of(case.loop(samples))


def in_turns(calls: Sequence[Callable[[], object]], work: int) -> list[list[float]]:
    """Rates of each call by round; the order changes from round to round."""
    rates: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for round_number in range(ROUNDS):
        for at in range(len(calls)):
            which = (at + round_number) % len(calls)
            rates[which].append(rate_of(calls[which], work))
    return rates


def rate_of(call: Callable[[], object], work: int) -> float:
    """Samples per second over a turn."""
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < TURN_SECONDS:
        call()
        calls += 1
    return work * calls / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
