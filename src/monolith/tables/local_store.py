"""The store whose rows live in this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables._arrays import finite_scale, float_array, id_array, time_array
from monolith.tables._merged_update import MergedUpdate, merge_updates, require_finite
from monolith.tables._native_tables import NativeTables
from monolith.tables.batch_memory import new_rows
from monolith.tables.bucket_owner import BucketOwner
from monolith.tables.cut import ALL_BUCKETS, bucket_bounds, row_blocks
from monolith.tables.local_plan import LocalPlan, LocalRows, PreparedUpdate
from monolith.tables.row_block import BlockKind, RowBlock
from monolith.tables.rows import applied_from_core
from monolith.tables.store import (
    NOTHING_APPLIED,
    Applied,
    BatchStamp,
    Finished,
    LoadReport,
    Mark,
    StoreStats,
    Traits,
    require_boundary,
)
from monolith.tables.table_group import TableGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from monolith import _core
    from monolith.tables.schema import Schema
    from monolith.tables.store import Pending, Plan, Rows, Update
    from monolith.tables.table_config import TableConfig

_SUBJECT = "local store"
_PER_UNIQUE_ID = 1


class LocalCut:
    """The state after one update: rows, filters, tombstones and the stamps of the batches in them."""

    def __init__(self, core: _core.Cut, *, seq: int, mark: Mark, applied: Mapping[int, BatchStamp]) -> None:
        self.core = core
        self.cores = (core,)
        """One for each of the store's `owners`."""
        self.seq = seq
        self.mark = mark
        self.applied = applied

    def blocks(self, buckets: range = ALL_BUCKETS, *, state: bool) -> Iterator[RowBlock]:
        """Each bucket once per cut."""
        return row_blocks(self.core.blocks(*bucket_bounds(buckets), state))

    def release(self) -> None:
        """Lets the store forget the old images."""
        self.core.release()


class LocalStore:
    """`monolith.tables.store.Store` over tables of this process; every result is there when the call returns.

    One lock orders updates, cuts and evictions, so that a cut holds exactly the batches that its stamps name; reads and
    plans take no lock. Results do not depend on the number of threads.

    >>> import torch
    >>> from monolith.tables import BatchStamp, LocalStore, Segment, TableConfig, Update
    >>> store = LocalStore({"user": TableConfig([Segment(1)])})
    >>> plan = store.plan(torch.tensor([3, 3]), torch.tensor([0, 2]), stamp=BatchStamp(worker=0, seq=0))
    >>> rule = Update(seq=0, step=0, learning_rates=torch.tensor([0.5]), times=0)
    >>> store.apply([(plan, torch.tensor([1.0]))], rule).result().inserted
    1
    >>> store.read(plan, after=0, train=False).result().values
    tensor([-0.5000])
    """

    def __init__(self, configs: Mapping[str, TableConfig]) -> None:
        self.native = NativeTables(configs)
        self.tables = TableGroup.of_native(self.native)
        """The same rows by table name, for tools and tests."""
        self._lock = threading.Lock()
        self._applied: dict[int, BatchStamp] = {}
        self._last_seq = NOTHING_APPLIED
        self._generation = 0
        self._open_plans = 0

    @property
    def owners(self) -> tuple[BucketOwner, ...]:
        """Who has which buckets, for savers."""
        return (BucketOwner(self.native.core, ALL_BUCKETS),)

    @property
    def schema(self) -> Schema:
        """What the rows hold."""
        return self.native.schema

    @property
    def traits(self) -> Traits:
        """In process and exact."""
        return Traits()

    # Batches

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp) -> LocalPlan:
        """Groups the ids of one batch; touches no row and takes no lock."""
        flat = id_array(ids, _SUBJECT).reshape(-1)
        splits = id_array(table_splits, _SUBJECT, "table_splits")
        if splits.shape != (len(self.native) + 1,):
            raise InvalidArgumentError(
                f"{_SUBJECT}: table_splits must have shape ({len(self.native) + 1},), got {splits.shape}"
            )
        return LocalPlan(self.native, self.native.core.plan(flat, splits, True), splits.copy(), stamp)

    def read(self, plan: Plan, *, after: int, train: bool) -> Pending[Rows]:
        """Rows of the plan; `after` must be applied already, since nothing here is ever on its way."""
        own = self._own(plan)
        with self._lock:
            seen = self._last_seq
            if after > seen:
                raise FailedPreconditionError(
                    f"{_SUBJECT}: asked to read after update {after}, but the last one applied is {seen};"
                    " apply it first"
                )
            if train:
                self._open(own)
        values = new_rows((own.num_values,))
        self.native.core.read(own.core, values, max(0, after + 1))  # the step that this read is for
        return Finished(LocalRows(torch.from_numpy(values), seen))

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """One optimizer step per id with the sum of its gradients; a batch applied before is not applied again."""
        return Finished(self.commit(self.prepare(updates, rule)))

    def prepare(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> PreparedUpdate:
        """Everything of `apply` but the update itself; what does not fit is refused here."""
        plans = [self._own(plan) for plan, _ in updates]
        if not plans or len({id(plan) for plan in plans}) != len(plans):
            raise InvalidArgumentError(f"{_SUBJECT}: apply takes one or more plans, each once; got {len(plans)}")
        gradients = [
            float_array(gradient, (plan.num_values,), _SUBJECT, "gradient")
            for plan, (_, gradient) in zip(plans, updates, strict=True)
        ]
        times = time_array(rule.times, (sum(plan.core.num_ids for plan in plans),), _SUBJECT)
        return PreparedUpdate(
            plans=plans,
            merged=MergedUpdate(plans[0].core, gradients[0], times)
            if len(plans) == 1
            else merge_updates(self.native, plans, gradients, times),
            rates=float_array(rule.learning_rates, (self.native.rate_splits[-1],), _SUBJECT, "learning_rates"),
            scale=finite_scale(rule.scale, _SUBJECT),
            rule=rule,
        )

    def require_applicable(self, update: PreparedUpdate) -> None:
        """Raises what `commit` would raise because of a gradient: for those who commit to several stores or to none."""
        with self._lock:
            if self._was_applied([plan.stamp for plan in update.plans]):
                return
        if not update.is_known_finite:
            require_finite(self.native, update.merged, update.scale)

    def commit(self, update: PreparedUpdate) -> Applied:
        """The update itself, unless its batches were applied before."""
        plans = update.plans
        with self._lock:
            if self._was_applied([plan.stamp for plan in plans]):
                self._close(plans, "applied")
                return Applied(duplicate=True)
            for plan in plans:
                if plan.status == "discarded":
                    raise FailedPreconditionError(f"{_SUBJECT}: plan of {plan.stamp} was discarded; make a new one")
            applied = self._step(update)
            self._close(plans, "applied")
            self._applied |= {plan.stamp.worker: plan.stamp for plan in sorted(plans, key=lambda p: p.stamp.seq)}
            self._last_seq = max(self._last_seq, update.rule.seq)
        return applied

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update."""
        own = self._own(plan)
        with self._lock:
            if own.status in {"applied", "discarded"}:
                raise FailedPreconditionError(f"{_SUBJECT}: plan of {own.stamp} was {own.status} already")
            self._close([own], "discarded")

    def flush(self, *, timeout_seconds: float) -> int:  # noqa: ARG002 - nothing is ever on its way
        """The last update applied."""
        return self._last_seq

    # History

    def cut(self, *, seq: int) -> LocalCut:
        """Freezes rows and stamps together."""
        with self._lock:
            require_boundary("cut", asked=seq, last=self._last_seq)
            core = self.native.core.cut()
            return LocalCut(core, seq=seq, mark=Mark(self._generation, core.epoch), applied=dict(self._applied))

    def mark(self) -> Mark:
        """Closes the current epoch."""
        with self._lock:
            return Mark(self._generation, self.native.core.mark())

    def changes(self, *, since: Mark, state: bool) -> Iterator[RowBlock]:
        """Rows and tombstones of everything touched after the mark."""
        self._require_generation(since)
        return row_blocks(self.native.core.changes(since.epoch, bucket_bounds(ALL_BUCKETS), state))

    def forget(self, *, before: Mark) -> None:
        """Lets tombstones up to the mark go."""
        self._require_generation(before)
        self.native.core.forget(before.epoch)

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Takes over rows, tombstones and filters of some buckets.

        All blocks are held and checked before anything is written; load a range of buckets at a time to bound memory.
        """
        bounds = bucket_bounds(buckets)
        given = list(blocks)
        inside = [block for block in given if block.bucket in buckets]
        self._require_digests(inside)
        data = [block.data for block in inside]
        with self._lock:
            if replace:
                self.native.core.check(data, bounds, None)
                self.native.core.clear_buckets(*bounds)
            self.native.core.load(data, bounds, None)
        return LoadReport(
            rows=sum(block.count for block in inside if block.kind in {BlockKind.FULL, BlockKind.SERVING}),
            tombstones=sum(block.count for block in inside if block.kind is BlockKind.TOMBSTONE),
            filters=sum(block.kind is BlockKind.FILTER for block in inside),
            ignored=sum(max(1, block.count) for block in given if block.bucket not in buckets),
        )

    def require_loadable(self, blocks: Sequence[RowBlock], *, buckets: range) -> None:
        """Raises what `load` of these blocks, all of them of these buckets, would raise; changes nothing."""
        self._require_digests(blocks)
        self.native.core.check([block.data for block in blocks], bucket_bounds(buckets), None)

    def resume(self, *, seq: int, applied: Mapping[int, BatchStamp], generation: int) -> None:
        """Takes over how far a saved run had come; marks of other generations are refused from now on."""
        with self._lock:
            self._last_seq, self._applied, self._generation = seq, dict(applied), generation

    # Whole tables

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites or adds to the weights of a full block's ids; optimizer state stays."""
        if block.kind is not BlockKind.FULL:
            raise InvalidArgumentError(f"{_SUBJECT}: assign takes a block of full rows, got {block!r}")
        self._require_digest(block)
        weights = block.weights(self.native.dims[block.table]).reshape(-1)
        times = block.times.astype(np.int64)
        if block.count:
            with self._lock:
                self.native.core.assign(block.table, block.keys, weights, times, add, 0)

    def evict(self, *, now: int, seq: int) -> int:
        """Removes expired rows after update `seq`; `now` -1 means each table's newest time."""
        with self._lock:
            require_boundary("evict", asked=seq, last=self._last_seq)
            return self.native.core.evict(-1, now if now == -1 else int(time_array(now, (), _SUBJECT)[0]))

    def stats(self) -> StoreStats:
        """Numbers of all tables."""
        tables = self.tables.stats()
        parts = ("row_bytes", "index_bytes", "other_bytes")
        return StoreStats(
            rows=sum(int(table["rows"]) for table in tables.values()),
            memory_bytes=sum(int(table[part]) for table in tables.values() for part in parts),
            last_seq=self._last_seq,
            open_plans=self._open_plans,
            tables=tables,
        )

    # Inside; the caller holds the lock where state is changed

    def _own(self, plan: Plan) -> LocalPlan:
        if not isinstance(plan, LocalPlan) or plan.native is not self.native:
            raise InvalidArgumentError(
                f"{_SUBJECT}: plan must come from this store's plan(), got {type(plan).__name__}"
            )
        return plan

    def _step(self, update: PreparedUpdate) -> Applied:
        plan, gradient, times = update.merged
        layout = (_PER_UNIQUE_ID, None, None)
        applied = self.native.core.apply(
            plan, gradient, *layout, update.rates, update.rule.step, times, update.scale, None, update.is_known_finite
        )
        return applied_from_core(applied)

    def _open(self, plan: LocalPlan) -> None:
        if plan.status in {"applied", "discarded"}:
            raise FailedPreconditionError(f"{_SUBJECT}: plan of {plan.stamp} was {plan.status} already; make a new one")
        self._open_plans += plan.status == "new"
        plan.status = "open"

    def _close(self, plans: Sequence[LocalPlan], status: str) -> None:
        for plan in plans:
            self._open_plans -= plan.status == "open"
            plan.status = status

    def _was_applied(self, stamps: Sequence[BatchStamp]) -> bool:
        last = {worker: stamp.seq for worker, stamp in self._applied.items()}
        old = [stamp for stamp in stamps if stamp.seq <= last.get(stamp.worker, NOTHING_APPLIED)]
        if old and len(old) != len(stamps):
            raise FailedPreconditionError(
                f"{_SUBJECT}: {old[0]} was applied before, other batches of this update were not; repeat whole updates"
            )
        return bool(old)

    def _require_digests(self, blocks: Sequence[RowBlock]) -> None:
        for block in blocks:
            if block.kind is not BlockKind.FILTER:
                self._require_digest(block)

    def _require_digest(self, block: RowBlock) -> None:
        tables = self.schema.tables
        if block.table >= len(tables) or block.digest not in tables[block.table].readable_digests:
            raise FailedPreconditionError(
                f"{_SUBJECT}: {block!r} has schema digest {block.digest:#018x}, which is not that of this store's table"
                f" {block.table}; compare the two stores' schema.text"
            )

    def _require_generation(self, mark: Mark) -> None:
        if mark.generation != self._generation:
            raise FailedPreconditionError(
                f"{_SUBJECT}: mark of generation {mark.generation}, but the store is at {self._generation} after a"
                " rollback; start again from a cut"
            )
