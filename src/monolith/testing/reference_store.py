"""A store made of Python dictionaries: what every engine is compared with.

It implements the whole `monolith.tables.store.Store` protocol for tables with SGD or Adagrad, constant initializers and
counting admission, and is bit for bit what `LocalStore` computes. It knows no cap on rows, no serving rows and no
random initializer: the refusal says so.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.row_block import BlockKind, RowBlock
from monolith.tables.schema import Schema
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
from monolith.tables.table_config import sorted_by_name
from monolith.testing.reference_blocks import check_block, clear_buckets, load_block, write_blocks
from monolith.testing.reference_format import bucket_of_id
from monolith.testing.reference_rows import DictionaryTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.store import Pending, Plan, Rows, Update
    from monolith.tables.table_config import TableConfig

    _Merged: TypeAlias = dict[tuple[int, int], tuple[int, int, NDArray[np.float32]]]
    """(table, id) -> (count, time, gradient)."""

NUM_BUCKETS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class ReferencePlan:
    """The distinct (table, id) pairs of a batch."""

    stamp: BatchStamp
    pairs: tuple[tuple[int, int], ...]
    """(table, id), by bucket, then table, then first seen."""
    unique_ids: Tensor
    splits: Tensor
    inverse: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """What a read found."""

    values: Tensor
    seen_seq: int


class ReferenceCut:
    """A deep copy of the dictionaries."""

    def __init__(
        self,
        blocks: Mapping[bool, Sequence[RowBlock]],
        *,
        seq: int,
        mark: Mark,
        applied: Mapping[int, BatchStamp],
        on_release: Callable[[], None],
    ) -> None:
        self.seq = seq
        self.mark = mark
        self.applied = applied
        self._blocks = blocks
        self._on_release = on_release
        self._released = False

    def blocks(self, buckets: range, *, state: bool) -> Iterator[RowBlock]:
        """Blocks of these buckets as they were at the cut."""
        if self._released:
            raise FailedPreconditionError("cut: it was released; take another one")
        return (block for block in self._blocks[state] if block.bucket in buckets)

    def release(self) -> None:
        """Allows the next cut."""
        if not self._released:
            self._released = True
            self._on_release()


def _newest_times(plan: ReferencePlan, times: int | Tensor, start: int) -> list[int]:
    """For each pair the newest time of its occurrences; `start` is where the plan's inputs begin in `times`."""
    if not isinstance(times, torch.Tensor):
        return [int(times)] * len(plan.pairs)
    newest = [0] * len(plan.pairs)
    for position, at in enumerate(plan.inverse.tolist()):
        newest[at] = max(newest[at], int(times[start + position]))
    return newest


def _own(plan: Plan) -> ReferencePlan:
    if not isinstance(plan, ReferencePlan):
        raise InvalidArgumentError(f"plan must come from this store's plan(), got {type(plan).__name__}")
    return plan


class ReferenceStore:
    """See the module."""

    def __init__(self, configs: Mapping[str, TableConfig]) -> None:
        self._tables = [DictionaryTable(config) for config in sorted_by_name(configs)]
        self.schema = Schema(tuple(table.schema for table in self._tables))
        self.traits = Traits()
        self._lock = threading.RLock()
        self._epoch = 1
        self._generation = 0
        self._last_seq = NOTHING_APPLIED
        self._applied: dict[int, BatchStamp] = {}
        self._plans: dict[ReferencePlan, str] = {}
        self._cut_is_open = False

    # Plans

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp) -> ReferencePlan:
        """Groups the ids of a batch."""
        splits = table_splits.tolist()
        if len(splits) != len(self._tables) + 1 or splits[0] != 0 or splits[-1] != len(ids) or sorted(splits) != splits:
            raise InvalidArgumentError(f"table_splits must rise from 0 to {len(ids)}, got {splits}")
        keys = ids.tolist()
        owners = [table for table in range(len(self._tables)) for _ in range(splits[table], splits[table + 1])]
        inputs = list(zip(owners, keys, strict=True))
        places = {pair: (bucket_of_id(pair[1]), pair[0]) for pair in inputs}
        pairs = sorted(places, key=places.__getitem__)  # stable: first seen stays first inside a place
        positions = {pair: position for position, pair in enumerate(pairs)}
        inverse = [positions[pair] for pair in inputs]
        sizes = np.zeros(NUM_BUCKETS * len(self._tables) + 1, np.int64)
        for bucket, table in (places[pair] for pair in pairs):
            sizes[bucket * len(self._tables) + table + 1] += 1
        return ReferencePlan(
            stamp,
            tuple(pairs),
            torch.tensor([key for _, key in pairs], dtype=torch.int64),
            torch.from_numpy(np.cumsum(sizes)),
            torch.tensor(inverse, dtype=torch.int32),
            torch.tensor(np.bincount(inverse, minlength=len(pairs)) if inverse else [], dtype=torch.int32),
        )

    def read(self, plan: Plan, *, after: int, train: bool) -> Pending[Rows]:
        """Zeros for absent ids."""
        plan = _own(plan)
        with self._lock:
            if after > self._last_seq:
                raise FailedPreconditionError(
                    f"read after update {after}, but the last one applied is {self._last_seq}"
                )
            if train:
                self._open(plan)
            parts = [self._weights(table, key) for table, key in plan.pairs]
            values = np.concatenate([np.zeros(0, np.float32), *parts])
            return Finished(ReferenceRows(torch.from_numpy(values), self._last_seq))

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """One optimizer step per id."""
        own = [(_own(plan), gradient.detach().numpy()) for plan, gradient in updates]
        if not own:
            raise InvalidArgumentError("apply takes one or more plans, got none")
        with self._lock:
            stamps = {plan.stamp.worker: plan.stamp for plan, _ in sorted(own, key=lambda pair: pair[0].stamp.seq)}
            if self._was_applied([plan.stamp for plan, _ in own]):
                self._plans |= {plan: "applied" for plan, _ in own}
                return Finished(Applied(duplicate=True))
            for plan, _ in own:
                if self._plans.get(plan) == "discarded":
                    raise FailedPreconditionError("apply: the plan was discarded")
            result = self._apply_merged(self._merge(own, rule), rule)
            self._plans |= {plan: "applied" for plan, _ in own}
            self._applied |= stamps
            self._last_seq = max(self._last_seq, rule.seq)
            return Finished(result)

    def discard(self, plan: Plan) -> None:
        """Ends a plan."""
        plan = _own(plan)
        with self._lock:
            if self._plans.get(plan) in {"applied", "discarded"}:
                raise FailedPreconditionError(f"discard: the plan was {self._plans[plan]} already")
            self._plans[plan] = "discarded"

    def flush(self, *, timeout_seconds: float) -> int:  # noqa: ARG002 - nothing is ever on its way
        """The last update."""
        return self._last_seq

    # History

    def cut(self, *, seq: int) -> ReferenceCut:
        """Copies everything."""
        with self._lock:
            require_boundary("cut", asked=seq, last=self._last_seq)
            if self._cut_is_open:
                raise FailedPreconditionError("cut: another cut is open; release it first")
            self._cut_is_open = True
            blocks = {
                state: list(write_blocks(self._tables, since_epoch=0, epoch=self._epoch, state=state))
                for state in (False, True)
            }
            applied = dict(self._applied)
            return ReferenceCut(blocks, seq=seq, mark=self.mark(), applied=applied, on_release=self._close_cut)

    def mark(self) -> Mark:
        """Closes an epoch."""
        with self._lock:
            self._epoch += 1
            return Mark(self._generation, self._epoch - 1)

    def changes(self, *, since: Mark, state: bool) -> Iterator[RowBlock]:
        """Rows and tombstones written after the mark."""
        with self._lock:
            if since.generation != self._generation:
                raise FailedPreconditionError(
                    f"changes: mark of generation {since.generation}, but the store is at {self._generation}"
                )
            blocks = write_blocks(self._tables, since_epoch=since.epoch, epoch=self._epoch, state=state)
            return iter([block for block in blocks if block.kind is not BlockKind.FILTER])

    def forget(self, *, before: Mark) -> None:
        """Drops tombstones up to the mark."""
        with self._lock:
            for table in self._tables:
                table.tombstones = {key: epoch for key, epoch in table.tombstones.items() if epoch > before.epoch}

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Takes rows, tombstones and admission counts over."""
        with self._lock:
            given = list(blocks)
            for block in given:
                check_block(self._tables, block)
            if replace:
                clear_buckets(self._tables, buckets)
            inside = [block for block in given if block.bucket in buckets]
            for block in inside:
                load_block(self._tables, block, self._epoch)
            return LoadReport(
                rows=sum(block.count for block in inside if block.kind is BlockKind.FULL),
                tombstones=sum(block.count for block in inside if block.kind is BlockKind.TOMBSTONE),
                filters=sum(block.kind is BlockKind.FILTER for block in inside),
                ignored=sum(max(1, block.count) for block in given if block.bucket not in buckets),
            )

    def resume(self, *, seq: int, applied: Mapping[int, BatchStamp], generation: int) -> None:
        """Takes over how far a saved run had come."""
        with self._lock:
            self._last_seq, self._applied, self._generation = seq, dict(applied), generation

    # Whole tables

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites or adds to weights."""
        with self._lock:
            check_block(self._tables, block)
            table = self._tables[block.table]
            values = block.weights(table.dim)
            for key, time, weights in zip(block.keys.tolist(), block.times.tolist(), values, strict=True):
                table.newest_time = max(table.newest_time, time)
                row = table.rows.get(key)
                if row is None:
                    if not table.is_admitted(key, 1):
                        continue
                    row = table.insert(key, self._epoch)
                row.weights[:] = row.weights + weights if add else weights
                row.time, row.epoch = time, self._epoch

    def evict(self, *, now: int, seq: int) -> int:
        """Removes expired rows."""
        with self._lock:
            require_boundary("evict", asked=seq, last=self._last_seq)
            removed = 0
            for table in self._tables:
                for key in table.expired(table.newest_time if now == -1 else now):
                    table.remove(key, self._epoch)
                    removed += 1
            return removed

    def stats(self) -> StoreStats:
        """Counts only: dictionaries do not say what they weigh."""
        with self._lock:
            names = self.schema.names
            return StoreStats(
                rows=sum(len(table.rows) for table in self._tables),
                memory_bytes=0,
                last_seq=self._last_seq,
                open_plans=sum(state == "open" for state in self._plans.values()),
                tables={name: {"rows": len(table.rows)} for name, table in zip(names, self._tables, strict=True)},
            )

    # Inside

    def _close_cut(self) -> None:
        self._cut_is_open = False

    def _weights(self, table: int, key: int) -> NDArray[np.float32]:
        row = self._tables[table].rows.get(key)
        return np.zeros(self._tables[table].dim, np.float32) if row is None else row.weights

    def _open(self, plan: ReferencePlan) -> None:
        if self._plans.get(plan) in {"applied", "discarded"}:
            raise FailedPreconditionError(f"read: the plan was {self._plans[plan]} already; make a new one")
        self._plans[plan] = "open"

    def _was_applied(self, stamps: Sequence[BatchStamp]) -> bool:
        old = [stamp.worker in self._applied and stamp.seq <= self._applied[stamp.worker].seq for stamp in stamps]
        if any(old) and not all(old):
            raise FailedPreconditionError("apply: some of these batches were applied before, others not")
        return all(old)

    def _merge(self, own: Sequence[tuple[ReferencePlan, NDArray[np.float32]]], rule: Update) -> _Merged:
        """Summed over plans in the order given."""
        merged: _Merged = {}
        start = 0
        for plan, flat in own:
            dims = [self._tables[table].dim for table, _ in plan.pairs]
            if flat.shape != (sum(dims),):
                raise InvalidArgumentError(f"apply: gradient must have shape ({sum(dims)},), got {flat.shape}")
            parts = np.split(flat, np.cumsum(dims)[:-1]) if dims else []
            times = _newest_times(plan, rule.times, start)
            for pair, count, time, part in zip(plan.pairs, plan.counts.tolist(), times, parts, strict=True):
                old = merged.get(pair)
                if old is None:
                    merged[pair] = (count, time, part.copy())
                else:
                    merged[pair] = (old[0] + count, max(old[1], time), old[2] + part)
            start += len(plan.inverse)
        return merged

    def _apply_merged(self, merged: _Merged, rule: Update) -> Applied:
        self._refuse_nonfinite(merged)
        updated = inserted = filtered = skipped = 0
        rates = self._rates_by_table(rule.learning_rates.numpy())
        for (number, key), (count, time, gradient) in merged.items():
            table = self._tables[number]
            table.newest_time = max(table.newest_time, time)
            scaled = gradient * np.float32(rule.scale)
            if table.config.nonfinite == "skip" and not np.isfinite(scaled).all():
                skipped += 1
                continue
            row = table.rows.get(key)
            if row is None:
                if not table.is_admitted(key, count):
                    filtered += 1
                    continue
                row = table.insert(key, self._epoch)
                inserted += 1
            table.update(row, scaled, rates[number])
            row.time, row.epoch = time, self._epoch
            updated += 1
        return Applied(updated=updated, inserted=inserted, filtered=filtered, skipped=skipped)

    def _refuse_nonfinite(self, merged: _Merged) -> None:
        for (number, key), (_, _, gradient) in merged.items():
            config = self._tables[number].config
            if config.nonfinite == "raise" and not np.isfinite(gradient).all():
                raise InvalidArgumentError(f"table {config.name!r}: gradient of id {key} is not finite")

    def _rates_by_table(self, rates: NDArray[np.float32]) -> list[list[np.float32]]:
        if rates.shape != (self.schema.num_segments,):
            raise InvalidArgumentError(
                f"learning_rates must have {self.schema.num_segments} entries, got {rates.shape}"
            )
        remaining = iter(rates)
        return [[next(remaining) for _ in table.config.segments] for table in self._tables]
