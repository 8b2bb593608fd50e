"""An engine and the reference side by side: the same batches for both, workers at both, and comparisons of results."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch

from contracts.store_contents import changes_of, require_close, require_same, require_same_rows, stamps_of
from contracts.store_operations import Apply, OperationBatch
from monolith.errors import FailedPreconditionError
from monolith.tables import ALL_BUCKETS, NOTHING_APPLIED, BatchStamp, Update
from monolith.testing.reference_format import name_of_id, name_of_slot_id
from monolith.testing.reference_store import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from contracts.store_contents import Contents, NamedRow
    from contracts.store_operations import Id
    from monolith.tables import Applied, ChangePosition, Cut, Plan, Store, TableConfig, WorkerSession
    from monolith.testing.reference_format import RowName

    Pair = tuple[Any, Any]
    """A value of the engine, and the corresponding one of the reference."""
    StoreFactory = Callable[[Mapping[str, TableConfig]], Store]

T = TypeVar("T")
_TIMEOUT_SECONDS = 30.0
_STEP = 0
"""No compressor of the reference depends on it."""


class Sides:
    """Two stores of the same tables."""

    def __init__(self, make_store: StoreFactory, configs: Mapping[str, TableConfig]) -> None:
        self.makers: tuple[StoreFactory, StoreFactory] = (make_store, ReferenceStore)
        self.configs = configs
        self.stores = self.new_stores()
        self.exact = self.stores[0].traits.exact
        self.schema = self.stores[1].schema
        self.seen: set[NamedRow] = set()
        """Every row that was ever used."""
        in_order = [configs[name] for name in sorted(configs)]
        self._skips = np.array([config.nonfinite == "skip" for config in in_order])
        self._uses_latest = np.array([config.uses_latest for config in in_order])
        require_same("schema", self.stores[0].schema, self.schema)

    def new_stores(self) -> tuple[Store, Store]:
        """Returns another pair of empty stores."""
        return self.makers[0](self.configs), self.makers[1](self.configs)

    # Batches

    def plan(self, makers: Pair, batch: OperationBatch, stamp: BatchStamp) -> tuple[Plan, Plan]:
        """Returns plans of one batch, compared, by two stores or by two handles of a worker."""
        return self._plan(makers, [self.rows_of(table, ids) for table, ids in enumerate(batch.ids)], stamp)

    def rows_of(self, table: int, ids: Sequence[Id]) -> list[RowName]:
        """Returns the rows of some ids, which count as used from now on."""
        wide_slots = self.schema.tables[table].wide_slots
        rows = [
            name_of_id(number) if isinstance(number, int) else name_of_slot_id(*number, wide_slots) for number in ids
        ]
        self.seen |= {(table, row) for row in rows}
        return rows

    def buckets_of(self, rows: Sequence[RowName]) -> torch.Tensor | None:
        """Returns buckets for a store, or None where keys determine them."""
        if not any(table.wide_slots for table in self.schema.tables):
            return None
        return torch.tensor([row.bucket for row in rows], dtype=torch.int16)

    def _plan(self, makers: Pair, by_table: Sequence[Sequence[RowName]], stamp: BatchStamp) -> tuple[Plan, Plan]:
        rows = [row for of_table in by_table for row in of_table]
        flat = torch.tensor([row.key for row in rows], dtype=torch.int64)
        splits = torch.from_numpy(np.cumsum([0, *map(len, by_table)]))
        buckets = self.buckets_of(rows)
        engine, reference = (maker.plan(flat, splits, stamp=stamp, buckets=buckets) for maker in makers)
        for name in ("unique_ids", "splits", "inverse", "counts", "tables"):
            require_same(f"plan: {name}", getattr(engine, name).tolist(), getattr(reference, name).tolist())
        require_same("plan: stamp and size", (engine.stamp, engine.num_values), (stamp, reference.num_values))
        return engine, reference

    def gradient(self, plan: Plan, batch: OperationBatch) -> torch.Tensor:
        """Returns gradients of a wide scale, with zeros and negative zeros; some not finite if a table skips them."""
        owners = self._owners(plan)
        rng = np.random.default_rng(batch.seed)
        values = rng.standard_normal(len(owners)) * 10.0 ** rng.integers(-6, 4, len(owners))
        values[rng.random(len(owners)) < 0.1] *= -0.0
        bad = self._skips[owners] & (rng.random(len(owners)) < 0.05)
        values[bad] = rng.choice([np.nan, np.inf, -np.inf], int(bad.sum()))
        return torch.from_numpy(values.astype(np.float32))

    def latest(self, plan: Plan, values: torch.Tensor) -> torch.Tensor | None:
        """Returns the read rows of tables that need them again in the update, or None without such tables."""
        if not self._uses_latest.any():
            return None
        return values[torch.from_numpy(self._uses_latest[self._owners(plan)]).to(values.device)]

    def _owners(self, plan: Plan) -> NDArray[np.int64]:
        """Returns int64 [num_values]: the table of each float."""
        tables = plan.tables.numpy()
        return np.repeat(tables, np.array(self.schema.dims)[tables])

    # Comparing

    def same(self, what: str, pair: Pair, call: Callable[[Any], T]) -> T:
        """Calls both sides, compares the results and returns one of them."""
        engine, reference = (call(side) for side in pair)
        require_same(what, engine, reference)
        return engine

    def refused(self, what: str, pair: Pair, call: Callable[[Any], object]) -> tuple[str, str]:
        """Requires that both sides reject a call at the wrong time; returns the messages."""
        return refusal(what, pair[0], call), refusal(what, pair[1], call)

    def compare_reads(self) -> None:
        """Compares all rows ever used, read without training; and the statistics of the stores."""
        rows_by_table = [
            sorted(row for table, row in self.seen if table == index) for index in range(len(self.configs))
        ]
        plans = self._plan(self.stores, rows_by_table, BatchStamp(worker=0, seq=2**40))
        rows = [
            store.read(plan, step=_STEP).result().values.cpu().numpy()
            for store, plan in zip(self.stores, plans, strict=True)
        ]
        require_close("rows", *rows, exact=self.exact)
        self.same("rows, applied, open plans, times ahead", self.stores, _numbers)

    def contents(self, cuts: tuple[Cut, Cut]) -> tuple[Contents, Contents]:
        """Compares two cuts, and returns their contents."""
        self.same("rows of a cut", cuts, lambda cut: dict(cut.rows))
        self.same("applied batches of a cut", cuts, lambda cut: stamps_of(cut.applied))
        self.same("generation of a cut", cuts, lambda cut: cut.mark.generation)
        engine, reference = (changes_of(cut.blocks(ALL_BUCKETS, state=True)).rows for cut in cuts)
        require_same_rows("contents", engine, reference, exact=self.exact)
        return engine, reference

    def present_contents(self) -> tuple[Contents, Contents]:
        """Returns the current contents."""
        with self.stores[0].cut() as engine, self.stores[1].cut() as reference:
            return self.contents((engine, reference))

    def compare_changes(
        self, cuts: tuple[Cut, Cut], since: tuple[ChangePosition, ChangePosition], *, removals: bool
    ) -> None:
        """Compares the changes of two cuts; with `removals` also the removed ids."""
        engine, reference = (
            changes_of(cut.blocks(ALL_BUCKETS, state=True, since=mark)) for cut, mark in zip(cuts, since, strict=True)
        )
        require_same_rows("changes of a cut", engine.rows, reference.rows, exact=self.exact)
        if removals:
            require_same("removals of a cut", engine.removed, reference.removed)

    def refuse_marks(self, marks: Sequence[tuple[ChangePosition, ChangePosition]]) -> None:
        """Requires that both sides reject reading changes after these marks."""
        for pair in marks:
            for store, mark in zip(self.stores, pair, strict=True):
                refusal(f"a reader at {mark}", store, partial(_open_stranger, mark=mark))
                with store.cut() as cut:
                    refusal(f"changes since {mark}", cut, partial(_changes_since, mark=mark))


def _open_stranger(store: Store, *, mark: ChangePosition) -> object:
    return store.open_reader("stranger", at=mark)


def _changes_since(cut: Cut, *, mark: ChangePosition) -> object:
    return changes_of(cut.blocks(ALL_BUCKETS, state=True, since=mark))


def refusal(what: str, subject: Any, call: Callable[[Any], object]) -> str:
    """Requires that a call is rejected because of its time; returns the message."""
    try:
        call(subject)
    except FailedPreconditionError as error:
        return str(error)
    raise AssertionError(f"{what}: {type(subject).__name__} must refuse it, and did not")


def _numbers(store: Store) -> tuple[int, Mapping[int, int], int, int, int]:
    stats = store.stats()
    return stats.rows, dict(stats.applied), stats.open_plans, stats.times_ahead, stats.evicted


class _OpenBatch(NamedTuple):
    """A batch that was read for training."""

    batch: OperationBatch
    stamp: BatchStamp
    plans: tuple[Plan, Plan]
    values: tuple[torch.Tensor, torch.Tensor]


class ContractWorker:
    """Trains on both sides alike, and tracks which batches must have been applied."""

    def __init__(self, sides: Sides, number: int) -> None:
        self._sides = sides
        self._number = number
        self._open: list[_OpenBatch] = []
        self._step = 0
        self._last = NOTHING_APPLIED
        self._next_seq = 0
        self._join()

    def _join(self) -> None:
        engine, reference = (store.join(self._number) for store in self._sides.stores)
        self._session: tuple[WorkerSession, WorkerSession] = engine, reference
        stamp = self._sides.same("applied of the joining worker", self._session, lambda session: session.applied)
        self._last = NOTHING_APPLIED if stamp is None else stamp.seq
        self._next_seq = self._sides.same(
            "next_seq of the joining worker", self._session, lambda session: session.next_seq
        )
        require_same("worker", self._sides.same("worker", self._session, lambda session: session.worker), self._number)

    # Operations

    def read(self, batch: OperationBatch) -> None:
        """Plans and reads a batch for training, and keeps it open."""
        self._open.append(self._read(batch, self._stamp()))

    def apply(self, how: Apply) -> None:
        """Applies all open batches."""
        if not self._open:
            return
        batches, self._open = self._open, []
        previous = self._last
        engine, reference = self._push(batches, how, previous)
        require_same("applied", engine, reference)
        require_same("applied: duplicate", engine.duplicate, False)
        self._last = batches[-1].stamp.seq
        self._step += 1
        if how.retry:
            repeated = [self._read(batch.batch, batch.stamp) for batch in batches]
            again = self._push(repeated, how, previous)
            require_same("applied once more: duplicate", [applied.duplicate for applied in again], [True, True])

    def discard(self) -> None:
        """Discards all open batches."""
        self._discard(self._session)

    def lose_a_push(self, batch: OperationBatch, *, ahead: bool) -> None:
        """Pushes a batch that names a wrong predecessor: it must be rejected, and ends untrained."""
        lost = self._read(batch, self._stamp())
        wrong = self._last + 1 if ahead or self._last == NOTHING_APPLIED else self._last - 1
        for side, session in enumerate(self._session):
            said = refusal("a gap", session, lambda handle: self._apply(handle, side, [lost], Apply(), wrong))  # noqa: B023
            if self._last != NOTHING_APPLIED and str(self._last) not in said:
                raise AssertionError(f"a gap: the error must name the last batch, {self._last}, got {said!r}")
            session.discard(lost.plans[side])

    def evict(self, now: int) -> None:
        """Removes expired rows."""
        self._sides.same("evicted", self._session, lambda session: session.evict(now=now))

    def restart(self) -> None:
        """Joins again: its batches continue after the last applied one."""
        former, last = self._session, self._last
        self._join()
        require_same("last batch of the rejoined worker", self._last, last)
        self._refuse(former)

    def resume(self, *, in_place: bool) -> None:
        """Joins after a restore, other stores or the same ones, whose state has changed."""
        former = self._session
        if in_place:
            self._refuse(former)
        self._open = []
        self._join()

    def compare(self) -> None:
        """Compares the progress of both sides, as the worker sees it."""
        seen = self._sides.same(
            "flushed", self._session, lambda session: session.flush(timeout_seconds=_TIMEOUT_SECONDS)
        )
        require_same("flushed", seen, self._last)

    # Inside

    def _stamp(self) -> BatchStamp:
        seq = self._next_seq
        self._next_seq += 1
        return BatchStamp(worker=self._number, seq=seq, position=b"%d" % seq, event_time_ms=1000 * seq + 7)

    def _read(self, batch: OperationBatch, stamp: BatchStamp) -> _OpenBatch:
        plans = self._sides.plan(self._session, batch, stamp)
        rows = [
            session.read(plan, after=self._last, step=self._step, train=True).result()
            for session, plan in zip(self._session, plans, strict=True)
        ]
        engine, reference = (side.values for side in rows)
        require_same("last batch seen", [side.seen for side in rows], [self._last] * 2)
        require_close("rows for training", engine.cpu().numpy(), reference.cpu().numpy(), exact=self._sides.exact)
        return _OpenBatch(batch, stamp, plans, (engine, reference))

    def _push(self, batches: Sequence[_OpenBatch], how: Apply, previous: int) -> tuple[Applied, Applied]:
        engine, reference = (
            self._apply(session, side, batches, how, previous) for side, session in enumerate(self._session)
        )
        return engine, reference

    def _apply(
        self, session: WorkerSession, side: int, batches: Sequence[_OpenBatch], how: Apply, previous: int
    ) -> Applied:
        plans = [batch.plans[side] for batch in batches]
        times: list[int] = []
        for batch, plan in zip(batches, plans, strict=True):
            rng = np.random.default_rng(batch.batch.seed)
            times += (how.time + rng.integers(0, 1000, len(plan.inverse))).tolist()
        latest = [self._sides.latest(batch.plans[side], batch.values[side]) for batch in batches]
        rule = Update(
            step=self._step,
            learning_rates=self._rates(),
            times=torch.tensor(times, dtype=torch.int64) if how.times_per_id else how.time,
            previous=previous,
            scale=how.scale,
            latest=None if None in latest else [rows for rows in latest if rows is not None],
        )
        device = self._sides.stores[side].traits.device
        gradients = [
            self._sides.gradient(plan, batch.batch).to(device) for plan, batch in zip(plans, batches, strict=True)
        ]
        return session.apply(list(zip(plans, gradients, strict=True)), rule).result()

    def _rates(self) -> torch.Tensor:
        return torch.from_numpy(np.linspace(0.05, 0.2, self._sides.schema.num_segments, dtype=np.float32))

    def _discard(self, handles: Sequence[WorkerSession]) -> None:
        batches, self._open = self._open, []
        for batch in batches:
            for session, plan in zip(handles, batch.plans, strict=True):
                session.discard(plan)

    def _refuse(self, former: tuple[WorkerSession, WorkerSession]) -> None:
        """Handles of an ended incarnation can discard their open batches, and nothing else."""
        self._discard(former)
        nothing = OperationBatch(ids=((),) * len(self._sides.configs))
        plans = self._sides.plan(former, nothing, BatchStamp(worker=self._number, seq=2**40))
        rule = Update(step=0, learning_rates=self._rates(), times=0, previous=self._last)
        for side, (session, plan) in enumerate(zip(former, plans, strict=True)):
            session.read(plan, after=NOTHING_APPLIED, step=0, train=False).result()
            calls: dict[str, Callable[[WorkerSession], object]] = {
                "read": partial(_read_for_training, plan=plan),
                "apply": partial(_apply_nothing, plan=plan, rule=rule, device=self._sides.stores[side].traits.device),
                "flush": lambda handle: handle.flush(timeout_seconds=_TIMEOUT_SECONDS),
                "cut": lambda handle: handle.cut().release(),
                "evict": lambda handle: handle.evict(now=0),
            }
            for name, call in calls.items():
                refusal(f"{name} by a handle whose incarnation has ended", session, call)


def _read_for_training(session: WorkerSession, *, plan: Plan) -> object:
    return session.read(plan, after=NOTHING_APPLIED, step=0, train=True).result()


def _apply_nothing(session: WorkerSession, *, plan: Plan, rule: Update, device: str) -> object:
    return session.apply([(plan, torch.zeros(0, device=device))], rule).result()
