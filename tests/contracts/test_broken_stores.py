"""The contract notices engines that are wrong: each store here breaks one promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.store_contract import StoreContract
from contracts.store_operations import (
    Apply,
    Assign,
    CloseReader,
    CompareAll,
    Discard,
    Erase,
    Evict,
    Follow,
    Gap,
    OpenReader,
    Operation,
    OperationBatch,
    Read,
    Reload,
    Restart,
    Touch,
    Train,
)
from monolith.errors import OpError
from monolith.tables import Applied, BatchStamp, LoadReport, Pending, Plan, Rows, Segment, TableConfig, Traits, Update
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.formats.row_block import BlockKind, RowBlock
from monolith.tables.history import ALL_BUCKETS, ChangePosition, OwnerClock
from monolith.tables.row_optimizers import Adagrad, DelayCompensated, Sgd
from monolith.tables.snapshot.manifest import SnapshotManifest
from monolith.testing.reference_format import name_of_id
from monolith.testing.reference_history import ReferenceChangeReader, ReferenceCut, ReferenceHistory
from monolith.testing.reference_store import ReferenceStore
from monolith.testing.reference_worker import ReferenceClocks, ReferencePlan, ReferenceRows, ReferenceWorkerSession

DAY = 86400
TABLES = {
    "item": TableConfig([Segment(2, optimizer=Adagrad())], expire_days=2),
    "seen": TableConfig([Segment(1, optimizer=DelayCompensated(Sgd(), 0.5))]),
    "user": TableConfig([Segment(1)], min_count=2, expire_days=2, admission=SlidingHashFilter(capacity=1000)),
}
FIRST = OperationBatch(ids=((1, 2, 2), (4, 5, 6, 10, 11, 12), (7, 8)), seed=1)
SECOND = OperationBatch(ids=((2, 3), (4, 5, 6, 10, 11, 12), (7, 7)), seed=2)
TWICE = OperationBatch(ids=((), (), (5, 5)))
LATE = OperationBatch(ids=((), (), (6,)))
PROGRAM: list[Operation] = [
    OpenReader(name="log"),
    Train(batches=(FIRST,), time=DAY, retry=True),
    OpenReader(name="serving", at="cut", meanwhile=(Train(batches=(SECOND,), time=DAY), Evict(now=9 * DAY))),
    Follow(name="log"),
    Follow(name="serving"),
    Train(batches=(FIRST, SECOND), time=2 * DAY, times_per_id=True, scale=0.5),
    Follow(name="serving"),
    Assign(table=0, ids=(2, 9), seed=3, time=2 * DAY, add=True),
    Evict(now=4 * DAY),
    Follow(name="serving"),
    OpenReader(name="log"),
    CompareAll(since="log"),
    Follow(name="log"),
    Train(batches=(FIRST,), time=3 * DAY),
    Touch(table=0, ids=(1, 77)),
    CompareAll(since="log"),
    Follow(name="log"),
    Read(batch=FIRST, worker=1),
    Read(batch=SECOND, worker=0),
    Apply(worker=0, time=3 * DAY),
    Apply(worker=1, time=3 * DAY),
    Read(batch=SECOND, worker=0),
    Discard(worker=0),
    Gap(batch=SECOND, worker=0),
    Gap(batch=SECOND, worker=1, ahead=False),
    Restart(worker=1),
    Train(batches=(TWICE,), time=3 * DAY),
    Follow(name="log"),
    Erase(table=0, ids=(1, 2, 2, 78)),
    Erase(table=2, ids=(5, 7)),
    CompareAll(since="log"),
    Follow(name="log"),
    Train(batches=(FIRST, TWICE), time=3 * DAY),
    CloseReader(name="serving"),
    CloseReader(name="log"),
    OpenReader(name="log"),
    Reload(by="blocks", meanwhile=(Train(batches=(SECOND,), time=9 * DAY, worker=1),)),
    CompareAll(),
    Train(batches=(SECOND,), time=5 * DAY, worker=1),
    Train(batches=(TWICE,), time=5 * DAY),
    Train(batches=(LATE,), time=8 * DAY),
    OpenReader(name="log"),
    Reload(by="files", in_place=True, meanwhile=(Train(batches=(SECOND,), time=9 * DAY),)),
    Train(batches=(LATE,), time=0),
    Evict(now=-1),
    OpenReader(name="log"),
    Train(batches=(LATE,), time=8 * DAY),
    Follow(name="log"),
    CompareAll(),
]
Configs = Mapping[str, TableConfig]


class Broken(ReferenceStore):
    """Made of parts, of which one is broken."""

    clocks_class: type[ReferenceClocks] = ReferenceClocks
    history_class: type[ReferenceHistory] = ReferenceHistory
    joined_class: type[ReferenceWorkerSession] = ReferenceWorkerSession
    cut_class: type[ReferenceCut] = ReferenceCut

    def __init__(self, configs: Configs) -> None:
        super().__init__(configs)
        self.clocks = self.clocks_class()
        self.history = self.history_class(self.tables, self.lock)

    def join(self, worker: int) -> ReferenceWorkerSession:
        return self.joined_class(self, worker)


# Updates


class AppliesTwice(Broken):
    class clocks_class(ReferenceClocks):  # noqa: N801 - the name of the part
        def was_applied(self, stamps: Sequence[BatchStamp], previous: int) -> bool:
            return False


class AcceptsGaps(Broken):
    class clocks_class(ReferenceClocks):  # noqa: N801
        def was_applied(self, stamps: Sequence[BatchStamp], previous: int) -> bool:
            return super().was_applied(stamps, self.last_of(stamps[0].worker))


class AcceptsFormerIncarnations(Broken):
    class clocks_class(ReferenceClocks):  # noqa: N801
        def require_current(self, worker: int, incarnation: int) -> None:
            pass


class JoinsAsIfNew(Broken):
    class joined_class(ReferenceWorkerSession):  # noqa: N801
        def __init__(self, store: ReferenceStore, worker: int) -> None:
            super().__init__(store, worker)
            self.applied, self.next_seq = None, 0


class SeesBatchesOfOthers(Broken):
    class joined_class(ReferenceWorkerSession):  # noqa: N801
        def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
            rows: Any = super().read(plan, after=after, step=step, train=train)
            newest = max((stamp.seq for stamp in self._clocks.stamps.values()), default=-1)
            object.__setattr__(rows, "value", ReferenceRows(rows.result().values, newest))
            return rows  # type: ignore[no-any-return]


class _Changed(ReferenceWorkerSession):
    """Applies an update that is not the one it was given."""

    def changed(self, rule: Update) -> Update:
        return rule

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        return super().apply(updates, self.changed(rule))


class ForgetsTheScale(Broken):
    class joined_class(_Changed):  # noqa: N801
        def changed(self, rule: Update) -> Update:
            return replace(rule, scale=1.0)


class ForgetsTheLatestRows(Broken):
    class joined_class(_Changed):  # noqa: N801
        def changed(self, rule: Update) -> Update:
            return replace(rule, latest=None)


class StepsOncePerPlan(Broken):
    class joined_class(ReferenceWorkerSession):  # noqa: N801
        def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
            for number, update in enumerate(updates):
                latest = None if rule.latest is None else [rule.latest[number]]
                previous = self._clocks.last_of(self.worker) if number else rule.previous
                own = replace(rule, previous=previous, latest=latest, times=rule.times if number == 0 else 2 * DAY)
                result = super().apply([update], own if len(updates) > 1 else rule)
            return result


class LosesPlansThatAreDiscarded(Broken):
    class joined_class(ReferenceWorkerSession):  # noqa: N801
        def discard(self, plan: Plan) -> None:
            pass


class EvictsLate(Broken):
    class joined_class(ReferenceWorkerSession):  # noqa: N801
        def evict(self, *, now: int) -> int:
            return super().evict(now=now - DAY)


class ErasesWithoutTelling(Broken):
    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        removed = {name: self._table(table).rows.pop(name, None) for name in self._row_names(table, ids, buckets)}
        return sum(row is not None for row in removed.values())


class ErasesButRemembersCounts(Broken):
    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        contents = self._table(table).contents
        counts = dict(contents.counts)
        removed = super().erase(table, ids, buckets=buckets)
        contents.counts = counts
        return removed


class TellsOnlyOfRowsThatItErased(Broken):
    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        there = [row.key for row in self._row_names(table, ids, buckets) if row in self._table(table).rows]
        return super().erase(table, torch.tensor(there, dtype=torch.int64), buckets=buckets)


class CountsErasedIdsThatWereAbsent(Broken):
    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        super().erase(table, ids, buckets=buckets)
        return len(set(ids.tolist()))


class CountsRowsOfOneSlot(Broken):
    def rows_by_slot(self, table: str) -> dict[int, int]:
        return dict.fromkeys(super().rows_by_slot(table), 1)


class CountsEachIdOnce(Broken):
    def plan(
        self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None
    ) -> ReferencePlan:
        plan = super().plan(ids, table_splits, stamp=stamp, buckets=buckets)
        plan.counts.fill_(1)
        return plan


class AssignsWithoutAdding(Broken):
    def assign(self, block: RowBlock, *, add: bool) -> None:
        super().assign(block, add=False)


class RoundsRows(Broken):
    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        result: Any = super().read(plan, step=step)
        object.__setattr__(result, "value", ReferenceRows(result.result().values * (1 + 1e-6), -1))
        return result  # type: ignore[no-any-return]


class SaysThatItRounds(RoundsRows):
    def __init__(self, configs: Configs) -> None:
        super().__init__(configs)
        self.traits = Traits(exact=False)


# History


class LosesTombstones(Broken):
    class history_class(ReferenceHistory):  # noqa: N801
        def changes(self, since: int, *, state: bool, buckets: range) -> Iterator[RowBlock]:
            found = super().changes(since, state=state, buckets=buckets)
            return (block for block in found if block.kind is not BlockKind.TOMBSTONE)


class ForgetsBehindTheFastestReader(Broken):
    class history_class(ReferenceHistory):  # noqa: N801
        def forget(self) -> None:
            newest = max(self.readers.values(), default=0)
            for table in self.tables:
                kept = {key: at for key, at in table.contents.tombstones.items() if at > newest}
                table.contents.tombstones = kept


class ForgetsBesideACut(Broken):
    class history_class(ReferenceHistory):  # noqa: N801
        @property
        def keeps_removals(self) -> bool:
            return "serving" in self.readers


class RemembersForEver(Broken):
    class history_class(ReferenceHistory):  # noqa: N801
        floor = property(lambda self: 0)
        keeps_removals = property(lambda self: True)


class AcceptsMarksOfAnotherLife(Broken):
    class history_class(ReferenceHistory):  # noqa: N801
        def epoch_of(self, mark: ChangePosition) -> int:
            return super().epoch_of(self.at(min(mark.epoch, self.epoch - 1)))


class AcceptsMarksOfTheFuture(Broken):
    class history_class(ReferenceHistory):  # noqa: N801
        def epoch_of(self, mark: ChangePosition) -> int:
            return super().epoch_of(mark._replace(epoch=min(mark.epoch, self.epoch - 1)))


class ReadersBeginAnew(Broken):
    def open_reader(self, name: str, *, at: ChangePosition | None = None) -> ReferenceChangeReader:
        return self.history.open_reader(name, self.history.mark() if at is None else at)


class ReadersOutliveTheirLife(Broken):
    class history_class(ReferenceHistory):  # noqa: N801
        def begin_life(self, generation: int) -> None:
            self.generation = max(self.generation, generation) + 1


class KeepsItsGeneration(Broken):
    class history_class(ReferenceHistory):  # noqa: N801
        def begin_life(self, generation: int) -> None:
            super().begin_life(generation)
            self.generation = generation


class TouchingMovesTimes(Broken):
    def touch(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> None:
        super().touch(table, ids, buckets=buckets)
        for row in self.tables[self.schema.names.index(table)].rows.values():
            row.time += 1


class TouchingForgetsAbsentIds(Broken):
    def touch(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> None:
        rows = self.tables[self.schema.names.index(table)].rows
        super().touch(table, torch.tensor([key for key in ids.tolist() if name_of_id(key) in rows], dtype=torch.int64))


class _WholeCut(ReferenceCut):
    def blocks(
        self, buckets: range = ALL_BUCKETS, *, state: bool = True, since: ChangePosition | None = None
    ) -> Iterator[RowBlock]:
        if since is not None:
            self._history.epoch_of(since)
        return super().blocks(buckets, state=state)


class CutsAlwaysHaveEverything(Broken):
    def cut(self, *, timeout_seconds: float = 600.0) -> ReferenceCut:
        cut = super().cut()
        cut.__class__ = _WholeCut
        return cut


class CutsMoveOn(Broken):
    def cut(self, *, timeout_seconds: float = 600.0) -> ReferenceCut:
        cut = super().cut()
        cut._tables = self.tables
        return cut


class CutsForgetStamps(Broken):
    def cut(self, *, timeout_seconds: float = 600.0) -> ReferenceCut:
        cut = super().cut()
        cut._stamps = {worker: replace(stamp, position=b"") for worker, stamp in cut._stamps.items()}
        return cut


# Saving and restoring


class LosesFilters(Broken):
    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        kept = [block for block in blocks if block.kind is not BlockKind.FILTER]
        return super().load(kept, buckets=buckets, replace=replace)


class LoadsBesideWhatIsThere(Broken):
    def take(self, blocks: Sequence[RowBlock], table_of: Callable[[RowBlock], int], *, emptied: range | None) -> None:
        super().take(blocks, table_of, emptied=None)


class ForgetsStamps(Broken):
    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:
        super().resume(applied=(), generation=generation)


class ForgetsNewestTimes(Broken):
    def prepare_restore(self, folder: str, manifest: SnapshotManifest, **options: Any) -> Any:
        older = replace(manifest, tables=tuple(replace(table, newest_time=0) for table in manifest.tables))
        return super().prepare_restore(folder, older, **options)


BROKEN = [
    each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, Broken) and each not in {Broken, SaysThatItRounds}
]


def test_the_program_itself_is_sound() -> None:
    with StoreContract(ReferenceStore, TABLES) as contract:
        contract.run(PROGRAM)
    with StoreContract(Broken, TABLES) as contract:
        contract.run(PROGRAM)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_promise_is_noticed(broken: Callable[[Configs], Any]) -> None:
    contract = StoreContract(broken, TABLES)
    with pytest.raises((AssertionError, OpError)):
        contract.run(PROGRAM)


def test_there_are_many_promises() -> None:
    assert len(BROKEN) > 30


def test_an_engine_that_is_not_exact_is_compared_with_a_tolerance() -> None:
    with StoreContract(SaysThatItRounds, TABLES) as contract:
        contract.run(PROGRAM)
