"""A store whose rows are divided among several `LocalStore`s of this process, as parameter servers divide them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import fields, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.tables._arrays import float_array, id_array, time_array
from monolith.tables.bucket_owner import BucketOwner
from monolith.tables.cut import ALL_BUCKETS, NUM_BUCKETS, bucket_bounds
from monolith.tables.local_plan import LocalRows
from monolith.tables.local_store import LocalStore
from monolith.tables.shard_plan import ShardPlan, split_batch
from monolith.tables.store import Applied, Finished, LoadReport, StoreStats, Traits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from monolith.tables.local_store import LocalCut
    from monolith.tables.row_block import RowBlock
    from monolith.tables.schema import Schema
    from monolith.tables.store import BatchStamp, Mark, Pending, Plan, Rows, Update
    from monolith.tables.table_config import TableConfig

_SUBJECT = "local shards"
_RATIOS = ("index_load", "overhead_per_id")
"""Numbers of a table that are averaged over its rows; all others are added up."""

_Counts = TypeVar("_Counts", Applied, LoadReport)


class ShardsCut:
    """The state of all shards after one update."""

    def __init__(self, cuts: Sequence[LocalCut], owned: Sequence[range]) -> None:
        self._cuts = cuts
        self._owned = owned
        self.cores = tuple(cut.core for cut in cuts)
        """One for each of the store's `owners`."""
        self.seq, self.mark, self.applied = cuts[0].seq, cuts[0].mark, cuts[0].applied

    def blocks(self, buckets: range = ALL_BUCKETS, *, state: bool) -> Iterator[RowBlock]:
        """Each bucket once per cut."""
        bucket_bounds(buckets)
        shards = zip(self._cuts, self._owned, strict=True)
        return chain.from_iterable(cut.blocks(_overlap(owned, buckets), state=state) for cut, owned in shards)

    def release(self) -> None:
        """Lets the shards forget the old images."""
        for cut in self._cuts:
            cut.release()


class LocalShards:
    """`monolith.tables.store.Store` over several `LocalStore`s; shard k has the buckets b with b * shards // 1024 == k.

    Rows, times and stamps are bit for bit those of one `LocalStore`, whatever the number of shards: every shard sees
    every update, be it empty, and none of them changes before all have accepted it. Only a cap on rows differs: each
    shard has its share of it and removes rows of its own.

    >>> import torch
    >>> from monolith.tables import BatchStamp, LocalShards, Segment, TableConfig, Update
    >>> store = LocalShards({"user": TableConfig([Segment(1)])}, num_shards=3)
    >>> plan = store.plan(torch.tensor([3, 9, 3]), torch.tensor([0, 3]), stamp=BatchStamp(worker=0, seq=0))
    >>> rule = Update(seq=0, step=0, learning_rates=torch.tensor([0.5]), times=0)
    >>> store.apply([(plan, torch.tensor([1.0, 1.0]))], rule).result().inserted
    2
    """

    def __init__(self, configs: Mapping[str, TableConfig], *, num_shards: int) -> None:
        if not 1 <= num_shards <= NUM_BUCKETS:
            raise InvalidArgumentError(f"{_SUBJECT}: num_shards must be from 1 to {NUM_BUCKETS}, got {num_shards}")
        share = {name: _share(config, num_shards) for name, config in configs.items()}
        self.shards = tuple(LocalStore(share) for _ in range(num_shards))
        """In the order of their buckets."""
        starts = [-(-NUM_BUCKETS * number // num_shards) for number in range(num_shards + 1)]
        self._owned = tuple(range(begin, end) for begin, end in pairwise(starts))
        self._lock = threading.Lock()

    @property
    def owners(self) -> tuple[BucketOwner, ...]:
        """Who has which buckets, for savers."""
        shards = zip(self.shards, self._owned, strict=True)
        return tuple(BucketOwner(shard.native.core, owned) for shard, owned in shards)

    @property
    def schema(self) -> Schema:
        """What the rows hold."""
        return self.shards[0].schema

    @property
    def traits(self) -> Traits:
        """In process and exact."""
        return Traits()

    # Batches

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp) -> ShardPlan:
        """Groups the ids of one batch by shard; touches no row and takes no lock."""
        flat = id_array(ids, _SUBJECT).reshape(-1)
        splits = id_array(table_splits, _SUBJECT, "table_splits")
        _require_splits(splits, num_tables=len(self.schema.tables), num_ids=len(flat))
        batches = split_batch(flat, splits, len(self.shards))
        plans = [
            shard.plan(torch.from_numpy(batch.ids), torch.from_numpy(batch.table_splits), stamp=stamp)
            for shard, batch in zip(self.shards, batches, strict=True)
        ]
        return ShardPlan(self, plans, [batch.positions for batch in batches], stamp)

    def read(self, plan: Plan, *, after: int, train: bool) -> Pending[Rows]:
        """Rows of the plan, all shards after the same update."""
        parts = self._own(plan).parts
        with self._lock:
            rows = [
                shard.read(part, after=after, train=train).result()
                for shard, part in zip(self.shards, parts, strict=True)
            ]
        return Finished(LocalRows(torch.cat([each.values for each in rows]), rows[0].seen_seq))

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """One optimizer step per id with the sum of its gradients; a batch applied before is not applied again."""
        plans = [self._own(plan) for plan, _ in updates]
        gradients = [
            np.split(float_array(gradient, (plan.num_values,), _SUBJECT, "gradient"), np.cumsum(plan.part_values)[:-1])
            for plan, (_, gradient) in zip(plans, updates, strict=True)
        ]
        rules = self._rules(plans, rule)
        with self._lock:
            prepared = []
            for number, shard in enumerate(self.shards):
                own = [
                    (plan.parts[number], torch.from_numpy(parts[number]))
                    for plan, parts in zip(plans, gradients, strict=True)
                ]
                prepared.append(shard.prepare(own, rules[number]))
            for shard, update in zip(self.shards, prepared, strict=True):
                shard.require_applicable(update)
            # What is left to refuse is the same in all shards, so the first one refuses it.
            applied = [shard.commit(update) for shard, update in zip(self.shards, prepared, strict=True)]
        return Finished(_sum(applied))

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update."""
        own = self._own(plan)
        with self._lock:
            for shard, part in zip(self.shards, own.parts, strict=True):
                shard.discard(part)

    def flush(self, *, timeout_seconds: float) -> int:
        """The last update applied."""
        return self.shards[0].flush(timeout_seconds=timeout_seconds)

    # History

    def cut(self, *, seq: int) -> ShardsCut:
        """Freezes the rows and stamps of all shards together."""
        with self._lock, ExitStack() as undone:
            self._agree_on_newest_times()
            undone.callback(self._close_epoch)
            cuts = []
            for shard in self.shards:
                cuts.append(shard.cut(seq=seq))
                undone.callback(cuts[-1].release)
            undone.pop_all()
            return ShardsCut(cuts, self._owned)

    def mark(self) -> Mark:
        """Closes the current epoch of all shards."""
        with self._lock:
            return self._close_epoch()

    def changes(self, *, since: Mark, state: bool) -> Iterator[RowBlock]:
        """Rows and tombstones of everything touched after the mark."""
        return chain.from_iterable([shard.changes(since=since, state=state) for shard in self.shards])

    def forget(self, *, before: Mark) -> None:
        """Lets tombstones up to the mark go."""
        for shard in self.shards:
            shard.forget(before=before)

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Takes over rows, tombstones and filters of some buckets; first all blocks are checked."""
        bucket_bounds(buckets)
        given = list(blocks)
        outside = [block for block in given if block.bucket not in buckets]
        with self._lock:
            work = []
            for shard, owned in zip(self.shards, self._owned, strict=True):
                wanted = _overlap(owned, buckets)
                work.append((shard, wanted, [block for block in given if block.bucket in wanted]))
            for shard, wanted, own in work:
                shard.require_loadable(own, buckets=wanted)
            reports = [shard.load(own, buckets=wanted, replace=replace) for shard, wanted, own in work]
        return _sum([*reports, LoadReport(ignored=sum(max(1, block.count) for block in outside))])

    def resume(self, *, seq: int, applied: Mapping[int, BatchStamp], generation: int) -> None:
        """Takes over how far a saved run had come; marks of other generations are refused from now on."""
        with self._lock:
            for shard in self.shards:
                shard.resume(seq=seq, applied=applied, generation=generation)

    # Whole tables

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites or adds to the weights of a full block's ids; optimizer state stays."""
        if not (_core.bucket_of(block.keys) == block.bucket).all():
            raise InvalidArgumentError(
                f"{_SUBJECT}: assign takes ids of the block's own bucket, got others in {block!r}"
            )
        with self._lock:
            self.shards[block.bucket * len(self.shards) // NUM_BUCKETS].assign(block, add=add)

    def evict(self, *, now: int, seq: int) -> int:
        """Removes expired rows after update `seq`; `now` -1 means each table's newest time, over all shards."""
        with self._lock:
            self._agree_on_newest_times()
            return sum(shard.evict(now=now, seq=seq) for shard in self.shards)

    def stats(self) -> StoreStats:
        """Numbers of all tables."""
        with self._lock:
            parts = [shard.stats() for shard in self.shards]
        return StoreStats(
            rows=sum(part.rows for part in parts),
            memory_bytes=sum(part.memory_bytes for part in parts),
            last_seq=parts[0].last_seq,
            open_plans=parts[0].open_plans,
            tables={name: _table_stats([part.tables[name] for part in parts]) for name in self.schema.names},
        )

    # Inside

    def _own(self, plan: Plan) -> ShardPlan:
        if not isinstance(plan, ShardPlan) or plan.store is not self:
            raise InvalidArgumentError(
                f"{_SUBJECT}: plan must come from this store's plan(), got {type(plan).__name__}"
            )
        return plan

    def _rules(self, plans: Sequence[ShardPlan], rule: Update) -> list[Update]:
        """The update as each shard takes it: with the times of its own ids."""
        sizes = [len(plan.inverse) for plan in plans]
        times = time_array(rule.times, (sum(sizes),), _SUBJECT)
        if len(times) == 1:  # of all ids, or of the only one, which is not in every shard
            return [replace(rule, times=int(times[0]))] * len(self.shards)
        by_plan = np.split(times, np.cumsum(sizes)[:-1])
        return [
            replace(
                rule,
                times=torch.from_numpy(
                    np.concatenate([own[plan.positions[k]] for plan, own in zip(plans, by_plan, strict=True)])
                ),
            )
            for k in range(len(self.shards))
        ]

    def _close_epoch(self) -> Mark:
        """Brings all shards to the same epoch, also when a cut failed after some of them had closed theirs."""
        marks = [shard.mark() for shard in self.shards]
        for shard, mark in zip(self.shards, marks, strict=True):
            for _ in range(mark.epoch, max(marks).epoch):
                shard.mark()
        return max(marks)

    def _agree_on_newest_times(self) -> None:
        """Expiry counts from the newest time of a table, wherever the id that had it is."""
        cores = [shard.native.core for shard in self.shards]
        for table in range(len(self.schema.tables)):
            newest = max(core.newest_time(table) for core in cores)
            for core in cores:
                core.raise_newest_time(table, newest)


def _share(config: TableConfig, num_shards: int) -> TableConfig:
    """The config of one shard's part of a table."""
    caps = {name: getattr(config, name) for name in ("max_rows", "max_bytes")}
    return replace(config, **{name: max(1, cap // num_shards) for name, cap in caps.items() if cap is not None})


def _overlap(owned: range, wanted: range) -> range:
    begin = max(owned.start, wanted.start)
    return range(begin, max(begin, min(owned.stop, wanted.stop)))


def _require_splits(splits: np.ndarray[tuple[int, ...], np.dtype[np.int64]], *, num_tables: int, num_ids: int) -> None:
    if splits.shape != (num_tables + 1,):
        raise InvalidArgumentError(f"{_SUBJECT}: table_splits must have shape ({num_tables + 1},), got {splits.shape}")
    if splits[0] != 0 or splits[-1] != num_ids or (np.diff(splits) < 0).any():
        raise InvalidArgumentError(
            f"{_SUBJECT}: table_splits must rise from 0 to the number of ids ({num_ids}), got {splits.tolist()}"
        )


def _sum(parts: Sequence[_Counts]) -> _Counts:
    """Counts added up; a batch is a duplicate if it is one for every shard."""
    totals = {each.name: sum(getattr(part, each.name) for part in parts) for each in fields(parts[0])}
    if "duplicate" in totals:
        totals["duplicate"] = totals["duplicate"] == len(parts)
    return type(parts[0])(**totals)


def _table_stats(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    rows = sum(part["rows"] for part in parts)
    summed = {name: sum(part[name] for part in parts) for name in parts[0] if name not in _RATIOS}
    ratios = {name: sum(part[name] * part["rows"] for part in parts) / rows if rows else 0.0 for name in _RATIOS}
    return {**summed, **ratios}
