"""A store whose rows are divided among several `LocalStore`s of this process, as parameter servers divide them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.errors import InvalidArgumentError
from monolith.forks import fork_safe
from monolith.tables.arrays import bucket_array, id_array
from monolith.tables.batch import NOTHING_APPLIED, Finished
from monolith.tables.bucket_owners import (
    emptied_by,
    owned_ranges,
    require_assignable,
    require_owners,
    share_of,
    stats_of_all,
    sum_by_slot,
    sum_of_reports,
)
from monolith.tables.event_times import EventClock, newest_time_of
from monolith.tables.history import ALL_BUCKETS, NUM_BUCKETS, OwnerClock, bucket_bounds, shared_buckets
from monolith.tables.local.cut import LocalCut, ShardsCut
from monolith.tables.local.history import LocalHistory
from monolith.tables.local.plan import LocalRows
from monolith.tables.local.restore import LocalRestore
from monolith.tables.local.shard_plan import ShardPlan, split_batch
from monolith.tables.local.shards_joined import ShardsJoined
from monolith.tables.local.shards_restore import ShardsRestore
from monolith.tables.local.store import LocalStore, agreed_stamps
from monolith.tables.store import LoadReport, StoreStats, Traits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from monolith.tables.batch import BatchStamp, Pending, Plan, Rows
    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.history import ChangePosition, ChangeReader
    from monolith.tables.local.shard_plan import PartOfBatch
    from monolith.tables.schema import Schema
    from monolith.tables.snapshot.manifest import SnapshotManifest
    from monolith.tables.table_config import TableConfig

_ALL_TABLES = -1
_SUBJECT = "local shards"


class LocalShards:
    """`monolith.tables.store.Store` over several `LocalStore`s; shard k has the buckets b with b * shards // 1024 == k.

    Rows, times and stamps are bit for bit those of one `LocalStore`, whatever the number of shards: every shard sees
    every update, even an empty one, and none of them changes before all have accepted it. Only a cap on rows differs:
    each shard has its share of it and removes rows of its own.

    >>> import torch
    >>> from monolith.tables import BatchStamp, LocalShards, Segment, TableConfig, Update
    >>> store = LocalShards({"user": TableConfig([Segment(1)])}, num_shards=3)
    >>> joined = store.join(worker=0)
    >>> plan = joined.plan(torch.tensor([3, 9, 3]), torch.tensor([0, 3]), stamp=BatchStamp(worker=0, seq=0))
    >>> rule = Update(previous=-1, step=0, learning_rates=torch.tensor([0.5]), times=0)
    >>> joined.apply([(plan, torch.tensor([1.0, 1.0]))], rule).result().inserted
    2
    """

    def __init__(self, configs: Mapping[str, TableConfig], *, num_shards: int) -> None:
        require_owners(num_shards, subject=_SUBJECT, name="num_shards")
        share = {name: share_of(config, num_shards) for name, config in configs.items()}
        self.shards = tuple(LocalStore(share) for _ in range(num_shards))
        """In the order of their buckets."""
        self.owned = owned_ranges(num_shards)
        """The buckets of each shard."""
        self.lock = fork_safe(threading.Lock())
        """Orders calls to several shards, so that all shards see the same order."""
        self.event_clock = EventClock(newest_time_of([shard.native.core for shard in self.shards]))
        """Clock of all shards, which take times as they come."""
        self._history = LocalHistory([shard.native.core for shard in self.shards], self.owned, _SUBJECT)

    @property
    def schema(self) -> Schema:
        """Schema of the rows."""
        return self.shards[0].schema

    @property
    def traits(self) -> Traits:
        """Properties of the engine: in process and exact."""
        return Traits()

    # Batches

    def join(self, worker: int) -> ShardsJoined:
        """Begins an incarnation of a worker, at every shard."""
        with self.lock:
            return ShardsJoined(self, worker)

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> ShardPlan:
        """Groups the ids of one batch by shard; touches no row and takes no lock."""
        flat = id_array(ids, _SUBJECT).reshape(-1)
        splits = id_array(table_splits, _SUBJECT, "table_splits")
        _require_splits(splits, num_tables=len(self.schema.tables), num_ids=len(flat))
        batches = split_batch(flat, splits, len(self.shards), bucket_array(buckets, len(flat), _SUBJECT))
        plans = [
            shard.plan(
                torch.from_numpy(batch.ids),
                torch.from_numpy(batch.table_splits),
                stamp=stamp,
                buckets=batch.bucket_tensor,
            )
            for shard, batch in zip(self.shards, batches, strict=True)
        ]
        return ShardPlan(self, plans, [batch.positions for batch in batches], stamp)

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        """Returns the current rows, of all shards after the same updates."""
        parts = self.own(plan).parts
        with self.lock:
            rows = [shard.read(part, step=step).result() for shard, part in zip(self.shards, parts, strict=True)]
        return Finished(LocalRows(torch.cat([each.values for each in rows]), NOTHING_APPLIED))

    def own(self, plan: Plan) -> ShardPlan:
        """Returns the plan, if this store made it.

        Raises:
            InvalidArgumentError: another store made it.
        """
        if not isinstance(plan, ShardPlan) or plan.store is not self:
            raise InvalidArgumentError(
                f"{_SUBJECT}: plan must come from this store's plan(), got {type(plan).__name__}"
            )
        return plan

    # History

    def cut(self, *, timeout_seconds: float = 600.0) -> ShardsCut:  # noqa: ARG002 - nothing is ever in flight
        """Freezes the rows and stamps of all shards together."""
        with self.lock, ExitStack() as undone:
            self._agree_on_newest_times()
            undone.callback(self._history.mark)
            cuts = []
            for shard, owned in zip(self.shards, self.owned, strict=True):
                cuts.append(LocalCut(shard.native, self._history, shard.native.core.cut(), owned))
                undone.callback(cuts[-1].release)
            undone.pop_all()
            return ShardsCut(cuts)

    def open_reader(self, name: str, *, at: ChangePosition | None = None) -> ChangeReader:
        """Opens a reader of the changes of all shards."""
        return self._history.open_reader(name, at)

    def touch(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> None:
        """Marks rows as changed and absent ids as removed."""
        for shard, batch in self._parts_of(ids, buckets):
            shard.touch(table, torch.from_numpy(batch.ids), buckets=batch.bucket_tensor)

    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        """Removes rows and admission counts; returns the number of rows removed."""
        with self.lock:
            return sum(
                shard.erase(table, torch.from_numpy(batch.ids), buckets=batch.bucket_tensor)
                for shard, batch in self._parts_of(ids, buckets)
            )

    # Saving and restoring

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Loads rows, tombstones and filters of some buckets, after checking all blocks."""
        bucket_bounds(buckets)
        given = list(blocks)
        outside = [block for block in given if block.bucket not in buckets]
        with self.lock:
            work = []
            for shard, owned in zip(self.shards, self.owned, strict=True):
                wanted = shared_buckets(owned, buckets)
                work.append((shard, wanted, [block for block in given if block.bucket in wanted]))
            for shard, wanted, own in work:
                shard.require_loadable(own, buckets=wanted)
            reports = [
                shard.load_emptied(own, buckets=wanted, emptied=emptied_by(wanted, buckets) if replace else None)
                for shard, wanted, own in work
            ]
        return sum_of_reports([*reports, LoadReport(ignored=sum(max(1, block.count) for block in outside))])

    def prepare_restore(
        self,
        folder: str,
        manifest: SnapshotManifest,
        *,
        buckets: range = ALL_BUCKETS,
        ignore_unknown_tables: bool = False,
    ) -> ShardsRestore:
        """Reads and checks the files of some buckets, each shard those of its own buckets."""
        return ShardsRestore(
            [
                partial(
                    LocalRestore,
                    shard.native,
                    folder,
                    manifest,
                    shared_buckets(owned, buckets),
                    emptied=emptied_by(shared_buckets(owned, buckets), buckets),
                    ignore_unknown_tables=ignore_unknown_tables,
                )
                for shard, owned in zip(self.shards, self.owned, strict=True)
            ]
        )

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Sets the progress of the saved run; marks, readers and workers of the previous run become invalid."""
        stamps = [agreed_stamps(applied, owned) for owned in self.owned]
        with self.lock:
            self._history.begin_life(generation)
            for shard, own in zip(self.shards, stamps, strict=True):
                shard.resume(applied=[OwnerClock(ALL_BUCKETS, own)], generation=generation)

    # All rows

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites or adds to the weights of a full block's ids; optimizer state stays."""
        require_assignable(block, self.schema, subject=_SUBJECT)
        with self.lock:
            bounded = self.event_clock.bounded(block.times.astype(np.int64))
            owner = self.shards[block.bucket * len(self.shards) // NUM_BUCKETS]
            owner.assign_at(block, bounded.times, add=add)
            self.event_clock.count(bounded)

    def evict(self, *, now: int) -> int:
        """Removes expired rows; `now` -1 means each table's newest time, over all shards."""
        with self.lock:
            self._agree_on_newest_times()
            return sum(shard.evict(now=now) for shard in self.shards)

    def stats(self) -> StoreStats:
        """Returns statistics of all tables."""
        with self.lock:
            parts = [shard.stats() for shard in self.shards]
        return stats_of_all(parts, open_plans=parts[0].open_plans, times_ahead=self.event_clock.num_ahead)

    def rows_by_slot(self, table: str) -> dict[int, int]:
        """Returns rows by the number of their slot."""
        return sum_by_slot(shard.rows_by_slot(table) for shard in self.shards)

    def close(self) -> None:
        """Ends the readers. The rows stay readable."""
        self._history.close()
        for shard in self.shards:
            shard.close()

    # Inside

    def _parts_of(self, ids: Tensor, buckets: Tensor | None) -> Iterator[tuple[LocalStore, PartOfBatch]]:
        """Yields each shard with its ids of one table."""
        flat = id_array(ids, _SUBJECT).reshape(-1)
        splits, given = np.array([0, len(flat)]), bucket_array(buckets, len(flat), _SUBJECT)
        return zip(self.shards, split_batch(flat, splits, len(self.shards), given), strict=True)

    def agree_on_clock(self) -> None:
        """Gives every shard the newest time of all: rows expire by one clock, even if only one shard was written."""
        cores = [shard.native.core for shard in self.shards]
        newest = newest_time_of(cores)()
        for core in cores:
            core.raise_newest_time(_ALL_TABLES, newest)

    def _agree_on_newest_times(self) -> None:
        """Sets the newest time of each table on all shards, since expiry counts from it on every shard."""
        cores = [shard.native.core for shard in self.shards]
        for table in range(len(self.schema.tables)):
            newest = max(core.newest_time(table) for core in cores)
            for core in cores:
                core.raise_newest_time(table, newest)


def _require_splits(splits: np.ndarray[tuple[int, ...], np.dtype[np.int64]], *, num_tables: int, num_ids: int) -> None:
    if splits.shape != (num_tables + 1,):
        raise InvalidArgumentError(f"{_SUBJECT}: table_splits must have shape ({num_tables + 1},), got {splits.shape}")
    if splits[0] != 0 or splits[-1] != num_ids or (np.diff(splits) < 0).any():
        raise InvalidArgumentError(
            f"{_SUBJECT}: table_splits must rise from 0 to the number of ids ({num_ids}), got {splits.tolist()}"
        )
