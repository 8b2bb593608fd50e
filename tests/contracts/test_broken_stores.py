"""The contract notices engines that are wrong: each store here breaks one promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from monolith.errors import OpError
from monolith.tables import Segment, TableConfig
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.row_block import BlockKind, RowBlock
from monolith.tables.row_optimizers import Adagrad
from monolith.tables.store import Applied, BatchStamp, LoadReport, Mark, Pending, Plan, Rows, Traits, Update
from monolith.testing.reference_store import ReferenceRows, ReferenceStore
from monolith.testing.store_contract import (
    Assign,
    Batch,
    CompareAll,
    Evict,
    FollowChanges,
    Operation,
    Reload,
    StoreContract,
    Train,
)

DAY = 86400
TABLES = {
    "item": TableConfig([Segment(2, optimizer=Adagrad())], expire_days=2),
    "user": TableConfig([Segment(1)], min_count=2, expire_days=2, admission=SlidingHashFilter(capacity=1000)),
}
FIRST = Batch(ids=((1, 2, 2), (7, 8)), seed=1)
SECOND = Batch(ids=((2, 3), (7, 7)), seed=2)
TWICE = Batch(ids=((), (5, 5)))
PROGRAM: list[Operation] = [
    Train(batches=(FIRST,), time=DAY, retry=True),
    FollowChanges(),
    Train(batches=(FIRST, SECOND), time=2 * DAY, times_per_id=True, scale=0.5),
    Assign(table=0, ids=(2, 9), seed=3, time=2 * DAY, add=True),
    Evict(now=4 * DAY),
    FollowChanges(),
    Reload(disturb=SECOND),
    CompareAll(),
    Train(batches=(SECOND,), time=5 * DAY, worker=1),
    Train(batches=(TWICE,), time=5 * DAY),
    Train(batches=(TWICE,), time=5 * DAY),
    CompareAll(),
]


class AppliesTwice(ReferenceStore):
    def _was_applied(self, stamps: Sequence[BatchStamp]) -> bool:
        return False


class StepsOncePerPlan(ReferenceStore):
    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        for update in updates:
            result = super().apply([update], rule)
        return result


class ForgetsTheScale(ReferenceStore):
    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        plain = Update(seq=rule.seq, step=rule.step, learning_rates=rule.learning_rates, times=rule.times)
        return super().apply(updates, plain)


class CountsEachIdOnce(ReferenceStore):
    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp) -> Any:
        plan = super().plan(ids, table_splits, stamp=stamp)
        plan.counts.fill_(1)
        return plan


class EvictsLate(ReferenceStore):
    def evict(self, *, now: int, seq: int) -> int:
        return super().evict(now=now - DAY, seq=seq)


class LosesTombstones(ReferenceStore):
    def changes(self, *, since: Mark, state: bool) -> Iterator[RowBlock]:
        return (b for b in super().changes(since=since, state=state) if b.kind is not BlockKind.TOMBSTONE)


class LosesFilters(ReferenceStore):
    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        kept = [block for block in blocks if block.kind is not BlockKind.FILTER]
        return super().load(kept, buckets=buckets, replace=replace)


class AssignsWithoutAdding(ReferenceStore):
    def assign(self, block: RowBlock, *, add: bool) -> None:
        super().assign(block, add=False)


class ForgetsStamps(ReferenceStore):
    def resume(self, *, seq: int, applied: Mapping[int, BatchStamp], generation: int) -> None:
        super().resume(seq=seq, applied={}, generation=generation)


class RoundsRows(ReferenceStore):
    def read(self, plan: Plan, *, after: int, train: bool) -> Pending[Rows]:
        result: Any = super().read(plan, after=after, train=train)
        rows = result.result()
        object.__setattr__(result, "value", ReferenceRows(rows.values * (1 + 1e-6), rows.seen_seq))
        return result  # type: ignore[no-any-return]


class SaysThatItRounds(RoundsRows):
    def __init__(self, configs: Mapping[str, TableConfig]) -> None:
        super().__init__(configs)
        self.traits = Traits(exact=False)


BROKEN: list[Callable[[Mapping[str, TableConfig]], Any]] = [
    AppliesTwice,
    StepsOncePerPlan,
    ForgetsTheScale,
    CountsEachIdOnce,
    EvictsLate,
    LosesTombstones,
    LosesFilters,
    AssignsWithoutAdding,
    ForgetsStamps,
    RoundsRows,
]


def test_the_program_itself_is_sound() -> None:
    StoreContract(ReferenceStore, TABLES).run(PROGRAM)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_promise_is_noticed(broken: Callable[[Mapping[str, TableConfig]], Any]) -> None:
    contract = StoreContract(broken, TABLES)
    with pytest.raises((AssertionError, OpError)):
        contract.run(PROGRAM)


def test_an_engine_that_is_not_exact_is_compared_with_a_tolerance() -> None:
    StoreContract(SaysThatItRounds, TABLES).run(PROGRAM)


def test_tensors_of_the_reference_are_plain() -> None:
    plan = ReferenceStore(TABLES).plan(torch.tensor([5]), torch.tensor([0, 1, 1]), stamp=BatchStamp(worker=0, seq=0))
    assert plan.unique_ids.tolist() == [5]
