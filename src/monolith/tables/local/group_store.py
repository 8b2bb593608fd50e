"""What stores over one group of tables share, wherever its rows are: everything but how a batch is read and applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.ids import NUM_SLOTS_V2
from monolith.tables.arrays import NO_STEP, bucket_array, id_array, time_array
from monolith.tables.batch import made_from
from monolith.tables.formats.row_block import BlockKind, PackedBlocks, RowBlock
from monolith.tables.history import ALL_BUCKETS, OwnerClock, bucket_bounds
from monolith.tables.local.cut import LocalCut, LocalRestore
from monolith.tables.local.history import LocalHistory
from monolith.tables.local.plan import NativeSession, NativeStore, OpenPlans, PlanT, stamp_from_core, stamp_to_core
from monolith.tables.slot_keys import UNKNOWN_SLOT
from monolith.tables.store import LoadReport, StoreStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith import _core
    from monolith.tables.batch import BatchStamp, Plan
    from monolith.tables.history import ChangePosition, ChangeReader
    from monolith.tables.local.native_tables import NativeTables
    from monolith.tables.snapshot.manifest import SnapshotManifest

RowGroup: TypeAlias = "_core.Group | _core.DeviceGroup"
"""Where rows are: in the core, or on a device."""


class GroupStore(NativeStore[PlanT]):
    """The part of a `monolith.tables.store.Store` that calls the group of its rows and nothing else."""

    owned = (ALL_BUCKETS,)
    """All buckets: there is one owner."""

    def __init__(self, native: NativeTables, group: RowGroup) -> None:
        self.native = native
        """The tables as the core keeps them: schema, workers and times."""
        self.group = group
        """The rows."""
        self.plans = OpenPlans(self.subject)
        """Training plans that have not ended."""
        self.history = LocalHistory(group, ALL_BUCKETS, self.subject)
        """Marks and readers."""

    def require_worker(self, worker: int) -> None:
        """Rejects what is no number of a worker."""
        if worker < 0:
            raise InvalidArgumentError(f"{self.subject}: worker must be >= 0, got {worker}")

    # History

    def cut(self, *, timeout_seconds: float = 600.0) -> LocalCut:  # noqa: ARG002 - nothing is ever in flight
        """Freezes rows and stamps together."""
        return LocalCut(self.native, self.history, self.group.cut())

    def open_reader(self, name: str, *, at: ChangePosition | None = None) -> ChangeReader:
        """Opens a reader of changes."""
        return self.history.open_reader(name, at)

    def touch(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> None:
        """Marks rows as changed and absent ids as removed."""
        flat = id_array(ids, self.subject).reshape(-1)
        self.group.touch(self.native.number_of(table), flat, bucket_array(buckets, len(flat), self.subject))

    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        """Removes rows and admission counts; returns the number of rows removed."""
        flat = id_array(ids, self.subject).reshape(-1)
        bucket_numbers = bucket_array(buckets, len(flat), self.subject)
        return self.group.erase(self.native.number_of(table), flat, bucket_numbers)

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
            self.group.clear_buckets(*bucket_bounds(emptied))
        if isinstance(to_load, PackedBlocks):
            loaded = self.group.load_packed(to_load.data, bounds)
        else:
            loaded = self.group.load([block.data for block in to_load], bounds)
        return made_from(LoadReport, loaded)

    def require_loadable(self, blocks: Sequence[RowBlock] | PackedBlocks, *, buckets: range) -> None:
        """Raises what `load` of these blocks would raise; changes nothing."""
        bounds = bucket_bounds(buckets)
        if isinstance(blocks, PackedBlocks):
            self.group.check_packed(blocks.data, bounds)
        else:
            self.group.check([block.data for block in blocks], bounds)

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
            self.native,
            folder,
            manifest,
            buckets,
            emptied=buckets,
            ignore_unknown_tables=ignore_unknown_tables,
            group=self.group,
        )

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Sets the progress of the saved run; marks, readers and workers of the previous run become invalid."""
        stamps = agreed_stamps(applied, ALL_BUCKETS)
        self.history.begin_life(generation)
        self.group.resume([stamp_to_core(stamp) for stamp in stamps.values()])

    # All rows

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites or adds to the weights of a full block's ids; optimizer state stays."""
        if block.kind is not BlockKind.FULL:
            raise InvalidArgumentError(f"{self.subject}: assign takes a block of full rows, got {block!r}")
        clock = self.native.event_clock
        bounded = clock.bounded(block.times.astype(np.int64))
        self.assign_at(block, bounded.times, add=add)
        clock.count(bounded)

    def assign_at(self, block: RowBlock, times: NDArray[np.int64], *, add: bool) -> None:
        """Like `assign`, with these times instead of those of the block."""
        self.group.check([block.data], bucket_bounds(ALL_BUCKETS))
        weights = block.weights(self.native.dims[block.table]).reshape(-1)
        if block.count:
            buckets = np.full(block.count, block.bucket, np.uint16)
            self.group.assign(block.table, block.keys, weights, times, add, NO_STEP, buckets)

    # All rows

    def learning_rates_at(self, step: int) -> Tensor:
        """Returns float32 [S]: the rates of the tables' optimizers, one per segment."""
        return torch.from_numpy(self.native.rates(dict.fromkeys(range(len(self.native))), step))

    def evict(self, *, now: int) -> int:
        """Removes expired rows; `now` -1 means each table's newest time."""
        return self.group.evict(-1, now if now == -1 else int(time_array(now, (), self.subject)[0]))

    def stats(self) -> StoreStats:
        """Returns statistics of all tables."""
        names = self.native.names
        tables = {name: self.group.stats(number) for number, name in enumerate(names)}
        parts = ("row_bytes", "index_bytes", "other_bytes")
        return StoreStats(
            rows=sum(int(table["rows"]) for table in tables.values()),
            memory_bytes=sum(int(table[part]) for table in tables.values() for part in parts),
            applied={stamp.worker: stamp.seq for stamp in self.native.core.stamps()},
            open_plans=self.plans.count,
            tables=tables,
            times_ahead=self.native.event_clock.num_ahead,
        )

    def rows_by_slot(self, table: str) -> dict[int, int]:
        """Returns rows by the number of their slot."""
        rows_of_slot = self.group.rows_by_slot(self.native.number_of(table))
        return {slot if slot < NUM_SLOTS_V2 else UNKNOWN_SLOT: rows for slot, rows in rows_of_slot.items()}

    def close(self) -> None:
        """Ends the readers. The rows stay readable."""
        self.history.close()


class GroupSession(NativeSession[PlanT]):
    """The part that sessions of workers at such stores share."""

    def __init__(self, store: GroupStore[PlanT], worker: int) -> None:
        store.require_worker(worker)
        self._store: GroupStore[PlanT] = store
        self._core = store.native.core
        self.worker = worker
        self._incarnation, stamp = self._core.join(worker)
        self.applied = None if stamp is None else stamp_from_core(stamp)
        self.applied_by_server = [self.applied]
        """The worker's last batch at each owner; there is one owner."""
        self.next_seq = 0 if stamp is None else stamp.seq + 1

    def _begin_read(self, plan: Plan, *, after: int, train: bool) -> tuple[PlanT, int]:
        """Returns the plan, opened if it trains, and the worker's last batch, which is `after` or a later one."""
        own = self._own(plan)
        seen = self._core.last_applied(self.worker)
        if after > seen:
            raise FailedPreconditionError(
                f"{self._store.subject}: cannot read after batch {after} of worker {self.worker}: its last applied"
                f" batch is {seen}; apply it first"
            )
        if train:
            self._core.require_current(self.worker, self._incarnation)
            self._store.plans.open(own)
        return own, seen

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
