"""Ranks that each have a batch give the rows of one store that applies the plans of all of them in one update."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collective.rank_threads import run_ranks
from collective.ranks import results
from monolith.collective import LockStep, SerialExecutor, ShardedStore
from monolith.tables import BatchStamp, LocalStore, Segment, TableConfig, Update
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.initializers import RandomUniform
from monolith.tables.row_optimizers import Adagrad, DelayCompensated, Sgd
from monolith.tables.store import Store
from programs import Programs

DAY = 86400
COUNTED_SLOT = 9
TABLES = {
    "item": TableConfig([Segment(3, initializer=RandomUniform(-1.0, 1.0), optimizer=Sgd())], seed=5),
    "seen": TableConfig([Segment(2, optimizer=DelayCompensated(Adagrad(), 0.5))]),
    "tag": TableConfig([Segment(1)], nonfinite="skip"),
    "user": TableConfig(
        [Segment(2, optimizer=Adagrad(initial_accumulator_value=0.5)), Segment(1, optimizer=Sgd())],
        expire_days=3,
        slot_min_counts={COUNTED_SLOT: 3},
        admission=SlidingHashFilter(capacity=100_000),
    ),
}
DIMS = (3, 2, 1, 3)


class Rank(Protocol):
    """This process or thread, and its lines."""

    @property
    def rank(self) -> int: ...
    @property
    def training(self) -> SerialExecutor: ...
    @property
    def saving(self) -> SerialExecutor: ...


class RankBatch(NamedTuple):
    """What one rank trains in one step."""

    ids: tuple[tuple[int, ...], ...]
    seed: int
    time: int
    times_per_id: bool
    scale: float

    @property
    def flat(self) -> tuple[torch.Tensor, torch.Tensor]:
        flat = torch.tensor([each for ids in self.ids for each in ids], dtype=torch.int64)
        return flat, torch.from_numpy(np.cumsum([0, *map(len, self.ids)]))

    def gradient(self, plan_tables: torch.Tensor) -> torch.Tensor:
        rng = np.random.default_rng(self.seed)
        tables = plan_tables.numpy()
        owners = np.repeat(tables, np.array(DIMS)[tables])
        values = rng.standard_normal(len(owners)) * 10.0 ** rng.integers(-6, 4, len(owners))
        values[rng.random(len(owners)) < 0.1] *= -0.0
        values[(owners == 2) & (rng.random(len(owners)) < 0.1)] = np.nan
        return torch.from_numpy(values.astype(np.float32))

    def times(self) -> list[int]:
        rng = np.random.default_rng(self.seed)
        count = sum(map(len, self.ids))
        return (self.time + rng.integers(0, 1000, count)).tolist() if self.times_per_id else [self.time] * count


Step = tuple[RankBatch | None, ...]
"""Of each rank; None: it is idle."""


def contents(store: Store) -> dict[tuple[int, ...], object]:
    """Every row with its state and time, and every filter."""
    found: dict[tuple[int, ...], object] = {}
    with store.cut() as cut:
        for block in cut.blocks(ALL_BUCKETS, state=True):
            if block.kind is BlockKind.FILTER:
                found[-1, block.bucket] = block.payload.tobytes()
                continue
            for key, time, row in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True):
                found[block.table, block.bucket, key] = (time, row.tobytes())
    return found


def seen_of(values: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    return values[torch.from_numpy(np.repeat(tables.numpy() == 1, np.array(DIMS)[tables.numpy()]))]


def stamp_of(worker: int, step: int) -> BatchStamp:
    return BatchStamp(worker=worker, seq=step, position=b"x" * (worker * 7 + step), event_time_ms=step)


def rates() -> torch.Tensor:
    return torch.linspace(0.05, 0.2, 5)


def train_rank(rank: Rank, program: Sequence[Step], *, spare: bool = False) -> dict[tuple[int, ...], object]:
    store = ShardedStore(TABLES, training=rank.training, saving=rank.saving, spare_first_rank=spare)
    session = store.join(rank.rank)
    follow = LockStep(rank.training).follow
    last = -1
    for number, step in enumerate(program):
        batch = step[rank.rank]
        if batch is None:
            while any(step) and follow(store.followers()).result() != "update rows":
                pass
            continue
        plan = session.plan(*batch.flat, stamp=stamp_of(rank.rank, number))
        rows = session.read(plan, after=last, step=number, train=True).result()
        rule = Update(
            previous=last,
            step=number,
            learning_rates=rates(),
            times=torch.tensor(batch.times(), dtype=torch.int64) if batch.times_per_id else batch.time,
            scale=batch.scale,
            latest=[seen_of(rows.values, plan.tables)],
        )
        session.apply([(plan, batch.gradient(plan.tables))], rule)
        last = number
    assert session.flush(timeout_seconds=60) == last
    found = contents(store)
    with store.cut() as cut:
        assert [bucket for clock in cut.applied for bucket in clock.buckets] == list(ALL_BUCKETS)
        found[-2,] = {worker: (each.seq, each.position) for worker, each in cut.applied[-1].stamps.items()}
    found[-3,] = store.stats().times_ahead
    assert store.stats().open_plans == 0
    store.close()
    return found


def train_one(program: Sequence[Step]) -> dict[tuple[int, ...], object]:
    """One store that has the batches of all ranks as parts of one update."""
    store = LocalStore(TABLES)
    session = store.join(0)
    last, seq, stamps = -1, 0, {}
    for number, step in enumerate(program):
        updates, times, seen = [], [], []
        there = [batch for batch in step if batch is not None]
        for worker, batch in enumerate(step):
            if batch is None:
                continue
            plan = session.plan(*batch.flat, stamp=BatchStamp(worker=0, seq=seq))
            values = session.read(plan, after=last, step=number, train=True).result().values
            gradient = batch.gradient(plan.tables) * torch.tensor(batch.scale, dtype=torch.float32)
            updates.append((plan, gradient))
            times += batch.times()
            seen.append(seen_of(values, plan.tables))
            stamps[worker] = (number, stamp_of(worker, number).position)
            seq += 1
        if not updates:
            continue
        is_one = len({each.time for each in there}) == 1 and not any(each.times_per_id for each in there)
        rule = Update(
            previous=last,
            step=number,
            learning_rates=rates(),
            times=there[0].time if is_one else torch.tensor(times, dtype=torch.int64),
            latest=seen,
        )
        session.apply(updates, rule).result()
        last = seq - 1
    found = contents(store)
    found[-2,] = stamps
    found[-3,] = store.stats().times_ahead
    return found


IDS = st.sampled_from([-(2**63), 2**63 - 1, -1, 0, 1, 2, 3, *(COUNTED_SLOT << 48 | n for n in range(3))]) | st.integers(
    -(2**63), 2**63 - 1
)
BATCHES = st.builds(
    RankBatch,
    ids=st.tuples(*[st.lists(IDS, max_size=6).map(tuple)] * len(TABLES)),
    seed=st.integers(0, 2**16),
    time=st.integers(0, 20 * DAY),
    times_per_id=st.booleans(),
    scale=st.sampled_from([1.0, 0.5, 0.3]),
)


def steps_of(size: int) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.tuples(*[st.none() | BATCHES] * size), max_size=6)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines differ in speed
def test_any_batches_of_ranks_give_the_rows_of_one_store_bit_for_bit(size: int, data: st.DataObject) -> None:
    program = data.draw(steps_of(size))
    found = run_ranks(size, lambda rank: train_rank(rank, program))
    expected = train_one(program)
    for each in found:
        assert each == expected


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_over_gloo_give_the_rows_of_one_store_bit_for_bit(
    size: int, programs: Programs, tmp_path: Path
) -> None:
    from collective.sharded_suite import digest_of, program_of  # noqa: PLC0415 - it imports this module

    expected = train_one(program_of(7, size))
    assert len(expected) > 1000
    found = results(programs, Path(__file__).with_name("sharded_suite.py"), tmp_path, "7", size=size)
    assert found == [[len(expected), digest_of(expected)]] * size
