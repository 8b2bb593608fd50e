"""A store made of Python dictionaries, the reference for every engine.

It implements the complete `monolith.tables.store.Store` protocol for tables that learn by SGD or Adagrad (also under
`DelayCompensated`), begin with constants or `RandomUniform` and count occurrences for admission. It equals `LocalStore`
bit for bit. Limits on rows and serving tables are not supported, and raise an error. One lock serializes calls.

Read in this order: `reference_rows` (a table and its arithmetic), `reference_worker` (a worker and its batches),
`reference_history` (marks, readers and cuts).
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import (
    ALL_BUCKETS,
    NOTHING_APPLIED,
    Finished,
    LoadReport,
    PreparedRestore,
    Schema,
    StoreStats,
    Traits,
    bucket_bounds,
    sorted_by_name,
)
from monolith.tables.formats import BlockKind
from monolith.tables.local import NO_BATCH, agreed_stamps
from monolith.tables.snapshot import RestoreReport, blocks_of, match_tables, report_of
from monolith.testing.reference_format import RowName, bounded_times
from monolith.testing.reference_history import ReferenceCut, ReferenceHistory
from monolith.testing.reference_rows import DictionaryTable, check_block, clear_buckets, load_block, load_filter
from monolith.testing.reference_worker import (
    ReferenceClocks,
    ReferencePlan,
    ReferenceRows,
    ReferenceWorkerSession,
    make_plan,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables import BatchStamp, ChangePosition, ChangeReader, OwnerClock, Pending, Plan, Rows, TableConfig
    from monolith.tables.formats import RowBlock
    from monolith.tables.snapshot import SnapshotManifest


class ReferenceStore:
    """The reference store; see the module."""

    def __init__(self, configs: Mapping[str, TableConfig]) -> None:
        self.lock = threading.RLock()
        self.tables = [DictionaryTable(_known(config)) for config in sorted_by_name(configs)]
        self.schema = Schema(tuple(table.schema for table in self.tables))
        self.traits = Traits()
        self.owned = (ALL_BUCKETS,)
        self.clocks = ReferenceClocks()
        self.history = ReferenceHistory(self.tables, self.lock)
        self._open_plans = 0
        self.times_ahead = 0
        """Number of times that were bounded so far."""

    # Batches

    def join(self, worker: int) -> ReferenceWorkerSession:
        """Begins an incarnation of a worker."""
        if worker < 0:
            raise InvalidArgumentError(f"worker must be >= 0, got {worker}")
        with self.lock:
            return ReferenceWorkerSession(self, worker)

    def plan(
        self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None
    ) -> ReferencePlan:
        """Groups the ids of a batch."""
        return make_plan(self, self.tables, ids, table_splits, stamp, buckets)

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:  # noqa: ARG002 - no compressor here depends on it
        """Reads rows; zeros for absent ids."""
        return Finished(ReferenceRows(self.values_of(self.own(plan)), NOTHING_APPLIED))

    def values_of(self, plan: ReferencePlan) -> Tensor:
        """Returns the concatenated rows of a plan."""
        with self.lock:
            parts = [self._weights(table, name) for table, name in plan.pairs]
            return torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *parts]))

    def own(self, plan: Plan) -> ReferencePlan:
        """Returns the plan if this store made it."""
        if not isinstance(plan, ReferencePlan) or plan.store is not self:
            raise InvalidArgumentError(f"plan must come from this store's plan(), got {type(plan).__name__}")
        return plan

    def set_status(self, plan: ReferencePlan, status: str) -> None:
        """Sets the status of a plan; under the lock."""
        self._open_plans += (status == "open") - (plan.status == "open")
        plan.status = status

    # History

    def cut(self, *, timeout_seconds: float = 600.0) -> ReferenceCut:  # noqa: ARG002 - nothing is ever in flight
        """Copies everything."""
        with self.lock:
            if self.history.open_cut is not None:
                raise FailedPreconditionError("cut: another cut is open; release it first")
            cut = ReferenceCut(self.history, self.clocks.stamps, self._close_cut)
            self.history.open_cut = cut.mark.epoch
            return cut

    def open_reader(self, name: str, *, at: ChangePosition | None = None) -> ChangeReader:
        """Opens a reader of changes."""
        return self.history.open_reader(name, at)

    def touch(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> None:
        """Marks rows as changed, and absent ids as removed."""
        touched = self._table(table)
        with self.lock:
            for name in self._row_names(table, ids, buckets):
                if name in touched.rows:
                    touched.rows[name].epoch = self.history.epoch
                else:
                    self.history.note_removal(touched, name)

    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        """Removes rows and admission counts."""
        erased, removed = self._table(table), 0
        with self.lock:
            for name in self._row_names(table, ids, buckets):
                removed += erased.rows.pop(name, None) is not None
                erased.contents.counts.pop(name, None)
                self.history.note_removal(erased, name)
        return removed

    # Saving and restoring

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Loads rows, tombstones and admission counts."""
        bucket_bounds(buckets)
        block_list = list(blocks)
        inside = [block for block in block_list if block.bucket in buckets]
        with self.lock:
            for block in block_list:
                check_block(self.tables, block)
            self.take(inside, lambda block: block.table, emptied=buckets if replace else None)
        return LoadReport(
            rows=sum(block.count for block in inside if block.kind is BlockKind.FULL),
            tombstones=sum(block.count for block in inside if block.kind is BlockKind.TOMBSTONE),
            filters=sum(block.kind is BlockKind.FILTER for block in inside),
            ignored=sum(max(1, block.count) for block in block_list if block.bucket not in buckets),
        )

    def take(self, blocks: Sequence[RowBlock], table_of: Callable[[RowBlock], int], *, emptied: range | None) -> None:
        """Writes checked blocks, to cleared buckets or in addition to existing rows; under the lock."""
        if emptied is not None:
            if self.history.open_cut is not None:
                raise FailedPreconditionError("load: buckets cannot be emptied while a cut is open; release it first")
            clear_buckets(self.tables, emptied)
            self.history.note_emptied()
        for block in blocks:
            if block.kind is BlockKind.FILTER:
                load_filter(self.tables, block)
                continue
            table, epoch = self.tables[table_of(block)], self.history.epoch
            load_block(table, block, epoch=epoch, keeps_removals=self.history.keeps_removals)

    def prepare_restore(
        self,
        folder: str,
        manifest: SnapshotManifest,
        *,
        buckets: range = ALL_BUCKETS,
        ignore_unknown_tables: bool = False,
    ) -> ReferenceRestore:
        """Reads and checks the files of some buckets."""
        return ReferenceRestore(self, folder, manifest, buckets, ignore_unknown_tables=ignore_unknown_tables)

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Restores the progress of a saved run."""
        stamps = agreed_stamps(applied, ALL_BUCKETS)
        with self.lock:
            self.clocks.resume(stamps)
            self.history.begin_life(generation)

    # Calls on all rows

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites or adds to weights."""
        with self.lock:
            check_block(self.tables, block)
            if block.kind is not BlockKind.FULL:
                raise InvalidArgumentError(f"assign takes a block of full rows, got {block!r}")
            table, epoch = self.tables[block.table], self.history.epoch
            values = block.weights(table.dim)
            times, num_ahead = bounded_times(block.times.tolist(), self.newest_time)
            self.times_ahead += num_ahead
            for key, time, weights in zip(block.keys.tolist(), times, values, strict=True):
                name = RowName(block.bucket, key)
                table.contents.newest_time = max(table.contents.newest_time, time)
                row = table.rows.get(name)
                if row is None:
                    if not table.is_admitted(name, 1):
                        continue
                    row = table.insert(name, epoch)
                row.weights[:] = row.weights + weights if add else weights
                row.time, row.epoch = time, epoch

    @property
    def newest_time(self) -> int:
        """The clock of the store: the newest time of any table."""
        return max(table.contents.newest_time for table in self.tables)

    def stats(self) -> StoreStats:
        """Returns counts only: the memory of dictionaries is not measured."""
        with self.lock:
            return StoreStats(
                rows=sum(len(table.rows) for table in self.tables),
                memory_bytes=0,
                applied={worker: stamp.seq for worker, stamp in sorted(self.clocks.stamps.items())},
                open_plans=self._open_plans,
                tables={
                    table.schema.name: {
                        "rows": len(table.rows),
                        "evicted": table.num_evicted,
                        "tombstones": len(table.contents.tombstones),
                    }
                    for table in self.tables
                },
                times_ahead=self.times_ahead,
            )

    def rows_by_slot(self, table: str) -> dict[int, int]:
        """Returns rows by the number of their slot."""
        counted = self._table(table)
        with self.lock:
            return dict(Counter(counted.slot_of(name) for name in counted.rows))

    def close(self) -> None:
        """Closes the readers; the rows stay readable."""
        with self.lock:
            self.history.readers.clear()
            self.history.forget()

    # Inside

    def _table(self, name: str) -> DictionaryTable:
        if name not in self.schema.names:
            raise InvalidArgumentError(f"unknown table {name!r}; the tables are {', '.join(self.schema.names)}")
        return self.tables[self.schema.names.index(name)]

    def _row_names(self, table: str, ids: Tensor, buckets: Tensor | None) -> list[RowName]:
        number, keys = self.schema.names.index(table), ids.reshape(-1)
        splits = torch.tensor([0] * (number + 1) + [len(keys)] * (len(self.tables) - number))
        return [name for _, name in self.plan(keys, splits, stamp=NO_BATCH, buckets=buckets).pairs]

    def _close_cut(self) -> None:
        with self.lock:
            self.history.open_cut = None
            self.history.forget()

    def _weights(self, table: int, name: RowName) -> NDArray[np.float32]:
        row = self.tables[table].rows.get(name)
        return np.zeros(self.tables[table].dim, np.float32) if row is None else row.weights


def _known(config: TableConfig) -> TableConfig:
    """Raises for features that dictionaries do not support."""
    if config.serving or config.max_rows is not None or config.max_bytes is not None:
        raise InvalidArgumentError(f"table {config.name!r}: ReferenceStore supports no serving tables and no row cap")
    return config


class ReferenceRestore(PreparedRestore):
    """All blocks, read and checked; rows of another shape than the tables' own are rejected."""

    def __init__(
        self,
        store: ReferenceStore,
        folder: str,
        manifest: SnapshotManifest,
        buckets: range,
        *,
        ignore_unknown_tables: bool,
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._buckets = buckets
        origin = f"folder '{folder}'"
        held = manifest.buckets
        if buckets and (buckets.start < held.start or buckets.stop > held.stop):
            raise FailedPreconditionError(f"{origin}: {buckets} wanted, the snapshot holds {held}")
        self._match = match_tables(
            manifest, store.schema.tables, ignore_unknown_tables=ignore_unknown_tables, origin=origin
        )
        self._blocks = [
            block
            for block in blocks_of(folder, manifest, buckets)
            if block.bucket in buckets and (block.kind is BlockKind.FILTER or self._target(block) >= 0)
        ]
        for block in self._blocks:
            check_block(store.tables, block, table=self._target(block))

    def load(self) -> RestoreReport:
        """Replaces the contents of the store in these buckets."""
        tables = self._store.tables
        with self._store.lock:
            self._store.take(self._blocks, self._target, emptied=self._buckets)
            for source, number in zip(self._manifest.tables, self._match.targets, strict=True):
                if number >= 0:
                    contents = tables[number].contents
                    contents.newest_time = max(contents.newest_time, source.newest_time)
        rows = dict.fromkeys(self._store.schema.names, 0)
        for block in self._blocks:
            if block.kind is BlockKind.FULL:
                rows[tables[self._target(block)].schema.name] += block.count
        return report_of(self._manifest, self._match, rows)

    def __exit__(self, *_: object) -> None:
        self._blocks = []

    def _target(self, block: RowBlock) -> int:
        """Returns the target table of a block's rows; -1: none."""
        number: int = self._match.targets[block.table]
        return number
