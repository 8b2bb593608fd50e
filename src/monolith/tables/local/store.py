"""The store whose rows live in this process, and the sessions of its workers."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.ids import NUM_SLOTS_V2
from monolith.tables.arrays import NO_STEP, bucket_array, id_array, new_rows, time_array
from monolith.tables.batch import NOTHING_APPLIED, Applied, BatchStamp, Finished, made_from
from monolith.tables.formats.row_block import BlockKind, PackedBlocks, RowBlock
from monolith.tables.history import ALL_BUCKETS, OwnerClock, bucket_bounds
from monolith.tables.keyed_rows import KeyedValues
from monolith.tables.local.cut import LocalCut, LocalRestore
from monolith.tables.local.history import LocalHistory
from monolith.tables.local.native_tables import NativeTables
from monolith.tables.local.plan import (
    LocalPlan,
    LocalRows,
    NativeSession,
    NativeStore,
    OpenPlans,
    prepare_update,
    require_not_discarded,
    stamp_from_core,
    stamp_to_core,
)
from monolith.tables.slot_keys import UNKNOWN_SLOT
from monolith.tables.store import LoadReport, StoreStats, Traits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import Pending, Plan, Rows, Update
    from monolith.tables.history import ChangePosition, ChangeReader
    from monolith.tables.keyed_rows import KeyedRows
    from monolith.tables.snapshot.manifest import SnapshotManifest
    from monolith.tables.table_config import TableConfig

_SUBJECT = "local store"
_PER_UNIQUE_ID = 1


class LocalStore(NativeStore[LocalPlan]):
    """`monolith.tables.store.Store` over tables of this process; every result is available when the call returns.

    Updates of different workers run side by side; a cut holds exactly the batches that its stamps name. Reads and plans
    take no lock. Results do not depend on the number of threads.

    >>> import torch
    >>> from monolith.tables import BatchStamp, LocalStore, Segment, TableConfig, Update
    >>> store = LocalStore({"user": TableConfig([Segment(1)])})
    >>> joined = store.join(worker=0)
    >>> plan = joined.plan(torch.tensor([3, 3]), torch.tensor([0, 2]), stamp=BatchStamp(worker=0, seq=0))
    >>> rule = Update(previous=-1, step=0, learning_rates=torch.tensor([0.5]), times=0)
    >>> joined.apply([(plan, torch.tensor([1.0]))], rule).result().inserted
    1
    >>> store.read(plan, step=1).result().values
    tensor([-0.5000])
    """

    subject = _SUBJECT
    plan_kind = LocalPlan
    traits = Traits()
    """Properties of the engine: in process and exact."""
    owned = (ALL_BUCKETS,)
    """All buckets: there is one owner."""

    def __init__(self, configs: Mapping[str, TableConfig]) -> None:
        self.native = NativeTables(configs)
        """The tables as the core keeps them; for `HashTable`, `TableGroup` and other engine code."""
        self.core = self.native.core
        self.plans = OpenPlans(_SUBJECT)
        """Training plans that have not ended."""
        self.history = LocalHistory(self.native.core, ALL_BUCKETS, _SUBJECT)
        """Marks and readers."""

    # Batches

    def join(self, worker: int) -> LocalWorkerSession:
        """Begins an incarnation of a worker."""
        if worker < 0:
            raise InvalidArgumentError(f"{_SUBJECT}: worker must be >= 0, got {worker}")
        return LocalWorkerSession(self, worker)

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        """Returns the current rows."""
        own = self.own(plan)
        values = new_rows((own.num_values,))
        self.native.core.read(own.core, values, step)
        return Finished(LocalRows(torch.from_numpy(values), NOTHING_APPLIED))

    # History

    def cut(self, *, timeout_seconds: float = 600.0) -> LocalCut:  # noqa: ARG002 - nothing is ever in flight
        """Freezes rows and stamps together."""
        return LocalCut(self.native, self.history, self.native.core.cut())

    def open_reader(self, name: str, *, at: ChangePosition | None = None) -> ChangeReader:
        """Opens a reader of changes."""
        return self.history.open_reader(name, at)

    def touch(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> None:
        """Marks rows as changed and absent ids as removed."""
        flat = id_array(ids, _SUBJECT).reshape(-1)
        self.native.core.touch(self.native.number_of(table), flat, bucket_array(buckets, len(flat), _SUBJECT))

    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        """Removes rows and admission counts; returns the number of rows removed."""
        flat = id_array(ids, _SUBJECT).reshape(-1)
        bucket_numbers = bucket_array(buckets, len(flat), _SUBJECT)
        return self.native.core.erase(self.native.number_of(table), flat, bucket_numbers)

    # Saving and restoring

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Loads rows, tombstones and filters of some buckets.

        All blocks are held and checked before anything is written; load a range of buckets at a time to bound memory.
        `PackedBlocks` are passed to the core unchanged, in one call.
        """
        return self.load_emptied(blocks, buckets=buckets, emptied=buckets if replace else None)

    def load_emptied(self, blocks: Iterable[RowBlock], *, buckets: range, emptied: range | None) -> LoadReport:
        """Like `load`, but empties the buckets `emptied` first; for one of several owners these may be more."""
        bounds = bucket_bounds(buckets)
        to_load = blocks if isinstance(blocks, PackedBlocks) else list(blocks)
        if emptied is not None:
            self.require_loadable(to_load, buckets=buckets)
            self.native.core.clear_buckets(*bucket_bounds(emptied))
        if isinstance(to_load, PackedBlocks):
            loaded = self.native.core.load_packed(to_load.data, bounds)
        else:
            loaded = self.native.core.load([block.data for block in to_load], bounds, None)
        return made_from(LoadReport, loaded)

    def require_loadable(self, blocks: Sequence[RowBlock] | PackedBlocks, *, buckets: range) -> None:
        """Raises what `load` of these blocks would raise; changes nothing."""
        bounds = bucket_bounds(buckets)
        if isinstance(blocks, PackedBlocks):
            self.native.core.check_packed(blocks.data, bounds)
        else:
            self.native.core.check([block.data for block in blocks], bounds, None)

    def prepare_restore(
        self,
        folder: str,
        manifest: SnapshotManifest,
        *,
        buckets: range = ALL_BUCKETS,
        ignore_unknown_tables: bool = False,
    ) -> LocalRestore:
        """Reads and checks the files of some buckets."""
        return LocalRestore(
            self.native, folder, manifest, buckets, emptied=buckets, ignore_unknown_tables=ignore_unknown_tables
        )

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Sets the progress of the saved run; marks, readers and workers of the previous run become invalid."""
        stamps = agreed_stamps(applied, ALL_BUCKETS)
        self.history.begin_life(generation)
        self.native.core.resume([stamp_to_core(stamp) for stamp in stamps.values()])

    # All rows

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites or adds to the weights of a full block's ids; optimizer state stays."""
        if block.kind is not BlockKind.FULL:
            raise InvalidArgumentError(f"{_SUBJECT}: assign takes a block of full rows, got {block!r}")
        clock = self.native.event_clock
        bounded = clock.bounded(block.times.astype(np.int64))
        self.assign_at(block, bounded.times, add=add)
        clock.count(bounded)

    def assign_at(self, block: RowBlock, times: NDArray[np.int64], *, add: bool) -> None:
        """Like `assign`, with these times instead of those of the block."""
        self.native.core.check([block.data], bucket_bounds(ALL_BUCKETS), None)
        weights = block.weights(self.native.dims[block.table]).reshape(-1)
        if block.count:
            buckets = np.full(block.count, block.bucket, np.uint16)
            self.native.core.assign(block.table, block.keys, weights, times, add, NO_STEP, buckets)

    # Serving

    def lookup(self, keyed: KeyedRows, *, step: int = 0) -> KeyedValues:
        """Returns the current rows of some keys."""
        core, dims = self.native.core, np.array(self.native.dims, np.int64)
        values = np.empty(int((np.diff(keyed.splits) * dims).sum()), np.float32)
        if keyed.told:
            return KeyedValues(torch.from_numpy(values), core.lookup(keyed.keys, keyed.splits, values, step))
        num_found = 0
        for number, (own, rows) in enumerate(keyed.by_table(self.native.dims, values)):
            if len(rows):
                splits = self.native.splits_for(number, len(rows))
                plan = core.plan(keyed.keys[own].copy(), splits, False, keyed.buckets[own].copy())
                by_bucket = np.empty(rows.shape, np.float32)
                num_found += core.read(plan, by_bucket.reshape(-1), step)
                rows[:] = by_bucket[plan.inverse]
        return KeyedValues(torch.from_numpy(values), num_found)

    def overwrite(self, keyed: KeyedRows, values: NDArray[np.float32]) -> None:
        """Overwrites the weights of some keys."""
        clock = self.native.event_clock
        bounded = clock.bounded(np.full(len(keyed.keys), int(time.time()), np.int64))
        for number, (own, rows) in enumerate(keyed.by_table(self.native.dims, values)):
            if len(rows):
                keys, buckets = keyed.keys[own].copy(), keyed.buckets[own].copy()
                weights, times = rows.copy().reshape(-1), bounded.times[own].copy()
                self.native.core.assign(number, keys, weights, times, False, NO_STEP, buckets)
        clock.count(bounded)

    # All rows

    def learning_rates_at(self, step: int) -> Tensor:
        """Returns float32 [S]: the rates of the tables' optimizers, one per segment."""
        return torch.from_numpy(self.native.rates(dict.fromkeys(range(len(self.native))), step))

    def evict(self, *, now: int) -> int:
        """Removes expired rows; `now` -1 means each table's newest time."""
        return self.native.core.evict(-1, now if now == -1 else int(time_array(now, (), _SUBJECT)[0]))

    def stats(self) -> StoreStats:
        """Returns statistics of all tables."""
        core, names = self.native.core, self.native.names
        tables = {name: core.stats(number) for number, name in enumerate(names)}
        parts = ("row_bytes", "index_bytes", "other_bytes")
        return StoreStats(
            rows=sum(int(table["rows"]) for table in tables.values()),
            memory_bytes=sum(int(table[part]) for table in tables.values() for part in parts),
            applied={stamp.worker: stamp.seq for stamp in core.stamps()},
            open_plans=self.plans.count,
            tables=tables,
            times_ahead=self.native.event_clock.num_ahead,
        )

    def rows_by_slot(self, table: str) -> dict[int, int]:
        """Returns rows by the number of their slot."""
        rows_of_slot = self.native.core.rows_by_slot(self.native.number_of(table))
        return {slot if slot < NUM_SLOTS_V2 else UNKNOWN_SLOT: rows for slot, rows in rows_of_slot.items()}

    def close(self) -> None:
        """Ends the readers. The rows stay readable."""
        self.history.close()


class LocalShards(LocalStore):
    """Former name of `LocalStore`: rows of one process are no longer divided. Deprecated."""

    def __init__(self, configs: Mapping[str, TableConfig], *, num_shards: int) -> None:  # noqa: ARG002 - ignored
        text = "monolith.tables.LocalShards is deprecated and will be removed in the next version: use LocalStore"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        super().__init__(configs)


def agreed_stamps(applied: Sequence[OwnerClock], buckets: range) -> dict[int, BatchStamp]:
    """Returns the stamps in the clocks of some buckets, for the one owner of these buckets.

    Raises:
        FailedPreconditionError: they differ: some rows have a batch that others lack.
    """
    clocks = [clock for clock in applied if clock.buckets.start < buckets.stop and buckets.start < clock.buckets.stop]
    stamps: dict[int, BatchStamp] = {}
    for clock in clocks:
        for worker in {worker for other in clocks for worker in other.stamps}:
            stamp = clock.stamps.get(worker)
            if stamps.setdefault(worker, stamp) != stamp:  # type: ignore[arg-type]  # None shows a clock without it
                seqs = [None if worker not in other.stamps else other.stamps[worker].seq for other in clocks]
                raise FailedPreconditionError(
                    f"resume: the rows of worker {worker}'s batches come from owners that had applied different ones of"
                    f" them, {seqs}, and one owner would get them all; restore with as many owners as saved"
                )
    return stamps


class LocalWorkerSession(NativeSession[LocalPlan]):
    """`monolith.tables.store.WorkerSession` at a `LocalStore`: every update is in the rows when its call returns."""

    def __init__(self, store: LocalStore, worker: int) -> None:
        self._store: LocalStore = store
        self._core = store.native.core
        self.worker = worker
        self._incarnation, stamp = self._core.join(worker)
        self.applied = None if stamp is None else stamp_from_core(stamp)
        self.applied_by_server = [self.applied]
        """The worker's last batch at each owner; there is one owner."""
        self.next_seq = 0 if stamp is None else stamp.seq + 1

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Returns the rows of the plan; `after` must be applied already, since no update is ever in flight."""
        own = self._own(plan)
        seen = self._core.last_applied(self.worker)
        if after > seen:
            raise FailedPreconditionError(
                f"{_SUBJECT}: cannot read after batch {after} of worker {self.worker}: its last applied batch is"
                f" {seen}; apply it first"
            )
        if train:
            self._core.require_current(self.worker, self._incarnation)
            self._store.plans.open(own)
        values = new_rows((own.num_values,))
        self._core.read(own.core, values, step)
        return Finished(LocalRows(torch.from_numpy(values), seen))

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """Makes one optimizer step per id with the sum of its gradients; skips a batch that was applied before."""
        native = self._store.native
        plans = [self._own(plan) for plan, _ in updates]
        num_ids = sum(plan.core.num_ids for plan in plans)
        bounded = native.event_clock.bounded(time_array(rule.times, (num_ids,), _SUBJECT))
        update = prepare_update(
            native,
            plans,
            [gradient for _, gradient in updates],
            rule,
            bounded.times,
            incarnation=self._incarnation,
            subject=_SUBJECT,
        )
        require_not_discarded(plans, _SUBJECT)
        applied = self._core.apply(
            update.plan,
            update.gradient,
            _PER_UNIQUE_ID,
            None,
            None,
            update.rates,
            update.step,
            update.times,
            update.scale,
            update.latest,
            update.is_known_finite,
            [update.push],
        )
        self._store.plans.close_applied(plans)
        if not applied.duplicate:
            native.event_clock.count(bounded)
        return Finished(made_from(Applied, applied))

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update."""
        self._store.plans.discard(self._own(plan))

    def flush(self, *, timeout_seconds: float) -> int:  # noqa: ARG002 - nothing is ever in flight
        """Returns the last batch applied."""
        self._core.require_current(self.worker, self._incarnation)
        return self._core.last_applied(self.worker)

    def cut(self, *, timeout_seconds: float = 600.0) -> LocalCut:
        """Freezes rows and stamps together."""
        self._core.require_current(self.worker, self._incarnation)
        return self._store.cut(timeout_seconds=timeout_seconds)

    def evict(self, *, now: int) -> int:
        """Removes expired rows; `now` -1 means each table's newest time."""
        self._core.require_current(self.worker, self._incarnation)
        return self._store.evict(now=now)
