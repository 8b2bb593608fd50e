"""A worker at the reference: the plan of a batch, applied batches, and the handle through which the worker trains."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import NOTHING_APPLIED, NUM_BUCKETS, Applied, Finished
from monolith.testing.reference_format import RowName, bounded_times, name_of_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables import BatchStamp, Pending, Plan, Rows, Update
    from monolith.testing.reference_history import ReferenceCut
    from monolith.testing.reference_rows import DictionaryTable
    from monolith.testing.reference_store import ReferenceStore

Pair: TypeAlias = tuple[int, RowName]
"""A table, and an id of it."""


@dataclass(slots=True, eq=False, kw_only=True)
class ReferencePlan:
    """The distinct (table, id) pairs of a batch."""

    store: object
    """The store that made it."""
    stamp: BatchStamp
    pairs: Sequence[Pair]
    """(table, id), by bucket, then table, then first seen."""
    unique_ids: Tensor
    splits: Tensor
    inverse: Tensor
    counts: Tensor
    tables: Tensor
    num_values: int
    core: None = None
    status: str = "new"
    """new, open (read for training), applied or discarded."""


@dataclass(slots=True)
class IdContribution:
    """The contribution of the plans of an update to one id."""

    count: int
    time: int
    gradient: NDArray[np.float32]
    latest: NDArray[np.float32] | None
    """The row as the worker saw it."""


def make_plan(
    store: object,
    tables: Sequence[DictionaryTable],
    ids: Tensor,
    table_splits: Tensor,
    stamp: BatchStamp,
    buckets: Tensor | None,
) -> ReferencePlan:
    """Groups the ids of a batch."""
    splits, keys = table_splits.tolist(), ids.reshape(-1).tolist()
    if len(splits) != len(tables) + 1 or splits[0] != 0 or splits[-1] != len(keys) or sorted(splits) != splits:
        raise InvalidArgumentError(f"table_splits must rise from 0 to {len(keys)}, got {splits}")
    owners = [table for table in range(len(tables)) for _ in range(splits[table], splits[table + 1])]
    if buckets is None:
        require_ids([(tables[table], key) for table, key in zip(owners, keys, strict=True)])
        names = [name_of_id(key) for key in keys]
    else:
        names = [RowName(bucket, key) for bucket, key in zip(_checked(buckets, len(keys)), keys, strict=True)]
    inputs = list(zip(owners, names, strict=True))
    occurrences = Counter(inputs)
    places = {pair: (pair[1].bucket, pair[0]) for pair in inputs}
    pairs = sorted(places, key=places.__getitem__)  # stable: first seen stays first inside a bucket and table
    positions = {pair: position for position, pair in enumerate(pairs)}
    inverse = [positions[pair] for pair in inputs]
    sizes = np.zeros(NUM_BUCKETS * len(tables) + 1, np.int64)
    for bucket, table in (places[pair] for pair in pairs):
        sizes[bucket * len(tables) + table + 1] += 1
    return ReferencePlan(
        store=store,
        stamp=stamp,
        pairs=pairs,
        unique_ids=torch.tensor([name.key for _, name in pairs], dtype=torch.int64),
        splits=torch.from_numpy(np.cumsum(sizes)),
        inverse=torch.tensor(inverse, dtype=torch.int32),
        counts=torch.tensor([occurrences[pair] for pair in pairs], dtype=torch.int32),
        tables=torch.tensor([table for table, _ in pairs], dtype=torch.int64),
        num_values=sum(tables[table].dim for table, _ in pairs),
    )


def require_ids(keys: Sequence[tuple[DictionaryTable, int]]) -> None:
    """Raises if keys do not determine their buckets."""
    for table, key in keys:
        if key < 0 and table.config.wide_slots:
            raise InvalidArgumentError(
                f"table {table.schema.name!r}: key {key} does not contain its bucket; send the bucket with it"
            )


def _checked(buckets: Tensor, num_ids: int) -> list[int]:
    numbers: list[int] = buckets.tolist()
    if len(numbers) != num_ids or any(not 0 <= bucket < NUM_BUCKETS for bucket in numbers):
        raise InvalidArgumentError(f"buckets must be {num_ids} numbers in [0, {NUM_BUCKETS}), got {numbers}")
    return numbers


def merge(
    tables: Sequence[DictionaryTable], updates: Sequence[tuple[ReferencePlan, Tensor]], rule: Update
) -> dict[Pair, IdContribution]:
    """Returns by (table, id): gradients summed over the plans in the order given, and the first of the latest rows."""
    if rule.latest is not None and len(rule.latest) != len(updates):
        raise InvalidArgumentError(f"latest must be given for each of {len(updates)} plans, got {len(rule.latest)}")
    merged: dict[Pair, IdContribution] = {}
    start = 0
    for number, (plan, flat) in enumerate(updates):
        gradients = _by_pair(tables, plan.pairs, flat, "gradient")
        latest: dict[Pair, NDArray[np.float32]] = {}
        if rule.latest is not None:
            using = [(table, name) for table, name in plan.pairs if tables[table].config.uses_latest]
            latest = _by_pair(tables, using, rule.latest[number], "latest")
        times = _newest_times(plan, rule.times, start)
        for pair, count, time in zip(plan.pairs, plan.counts.tolist(), times, strict=True):
            gradient, before = gradients[pair], merged.get(pair)
            if before is None:
                merged[pair] = IdContribution(count, time, gradient.copy(), latest.get(pair))
            else:
                before.count += count
                before.time = max(before.time, time)
                with np.errstate(over="ignore", invalid="ignore"):  # the caller checks whether it is finite
                    before.gradient = before.gradient + gradient
        start += len(plan.inverse)
    return merged


def _by_pair(
    tables: Sequence[DictionaryTable], pairs: Sequence[Pair], values: Tensor, name: str
) -> dict[Pair, NDArray[np.float32]]:
    """Returns the rows of these pairs from concatenated values."""
    flat = values.detach().numpy()
    ends = np.cumsum([0, *(tables[table].dim for table, _ in pairs)])
    if flat.shape != (ends[-1],):
        raise InvalidArgumentError(f"apply: {name} must have shape ({ends[-1]},), got {flat.shape}")
    return {pair: flat[begin:end] for pair, begin, end in zip(pairs, ends[:-1], ends[1:], strict=True)}


def _newest_times(plan: ReferencePlan, times: int | Tensor, start: int) -> list[int]:
    """Returns for each pair the newest time of its occurrences; `start` is where the plan's inputs begin in `times`."""
    if not isinstance(times, torch.Tensor):
        return [int(times)] * len(plan.pairs)
    newest = [0] * len(plan.pairs)
    for position, at in enumerate(plan.inverse.tolist()):
        newest[at] = max(newest[at], int(times[start + position]))
    return newest


class ReferenceClocks:
    """The last batch of every worker, and the incarnation that may push the next one."""

    def __init__(self) -> None:
        self.stamps: dict[int, BatchStamp] = {}
        self._present: dict[int, int] = {}
        self._begun = 0

    def join(self, worker: int) -> int:
        """Begins an incarnation with a new number."""
        self._begun += 1
        self._present[worker] = self._begun
        return self._begun

    def resume(self, stamps: Mapping[int, BatchStamp]) -> None:
        """Replaces all stamps and ends all incarnations."""
        self.stamps = dict(stamps)
        self._present = {}

    def last_of(self, worker: int) -> int:
        """Returns the number of the worker's last batch."""
        return self.stamps[worker].seq if worker in self.stamps else NOTHING_APPLIED

    def require_current(self, worker: int, incarnation: int) -> None:
        """Raises if an incarnation has ended."""
        if self._present.get(worker) != incarnation:
            raise FailedPreconditionError(
                f"worker {worker}: this incarnation ({incarnation}) is over; the worker or the store was restarted:"
                " join again"
            )

    def was_applied(self, stamps: Sequence[BatchStamp], previous: int) -> bool:
        """Returns whether a push of these batches was applied before; raises if it does not follow the last one."""
        worker, last = stamps[0].worker, self.last_of(stamps[0].worker)
        old = [stamp.seq <= last for stamp in stamps]
        if all(old):
            return True
        if any(old):
            raise FailedPreconditionError(f"worker {worker}: some of {stamps} were applied before, others not")
        if previous != last:
            raise FailedPreconditionError(
                f"worker {worker}: batch {stamps[-1].seq} names {previous} as the push before it, but the last one"
                f" applied here is {last}"
            )
        return False


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """Result of a read."""

    values: Tensor
    seen: int


class ReferenceWorkerSession:
    """One incarnation of a worker."""

    def __init__(self, store: ReferenceStore, worker: int) -> None:
        self._store = store
        self._lock = store.lock
        self._clocks = store.clocks
        self.worker = worker
        self._incarnation = store.clocks.join(worker)
        self.applied = store.clocks.stamps.get(worker)
        self.applied_by_server = [self.applied]
        self.next_seq = store.clocks.last_of(worker) + 1

    def plan(
        self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None
    ) -> ReferencePlan:
        """Groups the ids of a batch of this worker."""
        self._require_own(stamp)
        return self._store.plan(ids, table_splits, stamp=stamp, buckets=buckets)

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:  # noqa: ARG002 - as in the store
        """Reads the rows of the plan."""
        own = self._own(plan)
        with self._lock:
            seen = self._clocks.last_of(self.worker)
            if after > seen:
                raise FailedPreconditionError(
                    f"cannot read after batch {after} of worker {self.worker}: its last applied batch is {seen}"
                )
            if train:
                self._require_current()
                if own.status in {"applied", "discarded"}:
                    raise FailedPreconditionError(f"read: the plan was {own.status} already; make a new one")
                self._store.set_status(own, "open")
            return Finished(ReferenceRows(self._store.values_of(own), seen))

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """Makes one optimizer step per id."""
        own = [(self._own(plan), gradient) for plan, gradient in updates]
        plans = [plan for plan, _ in own]
        if not plans or len({id(plan) for plan in plans}) != len(plans):
            raise InvalidArgumentError(f"apply takes one or more plans, each once; got {len(plans)}")
        with self._lock:
            self._require_current()
            for plan in plans:
                if plan.status == "discarded":
                    raise FailedPreconditionError("apply: the plan was discarded; make a new one")
            stamps = sorted((plan.stamp for plan in plans), key=lambda stamp: stamp.seq)
            applied = Applied(duplicate=True)
            if not self._clocks.was_applied(stamps, rule.previous):
                bounded, num_ahead = self._bounded(rule)
                before = self._store.newest_time
                applied = self._learn(merge(self._store.tables, own, bounded), bounded)
                self._evict_in_turn(before, self._store.newest_time)
                self._clocks.stamps[self.worker] = stamps[-1]
                self._store.times_ahead += num_ahead
            for plan in plans:
                self._store.set_status(plan, "applied")
            return Finished(applied)

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update."""
        own = self._own(plan)
        with self._lock:
            if own.status in {"applied", "discarded"}:
                raise FailedPreconditionError(f"discard: the plan was {own.status} already")
            self._store.set_status(own, "discarded")

    def flush(self, *, timeout_seconds: float) -> int:  # noqa: ARG002 - nothing is ever in flight
        """Returns the last batch applied."""
        with self._lock:
            self._require_current()
            return self._clocks.last_of(self.worker)

    def cut(self, *, timeout_seconds: float = 600.0) -> ReferenceCut:
        """Copies everything."""
        with self._lock:
            self._require_current()
            return self._store.cut(timeout_seconds=timeout_seconds)

    def evict(self, *, now: int) -> int:
        """Removes expired rows."""
        with self._lock:
            self._require_current()
            removed = 0
            for table in self._store.tables:
                removed += self._remove(table, table.expired(table.contents.newest_time if now == -1 else now))
            return removed

    # Inside

    def _evict_in_turn(self, before: int, now: int) -> None:
        """Evicts each bucket once per period of the table: bucket b at b / NUM_BUCKETS of the period."""
        for table in self._store.tables:
            seconds = table.config.seconds_between_evictions
            if seconds and before:
                turns = range(before * NUM_BUCKETS // seconds + 1, now * NUM_BUCKETS // seconds + 1)
                due = {turn % NUM_BUCKETS for turn in turns[-NUM_BUCKETS:]}
                self._remove(table, [name for name in table.expired(now) if name.bucket in due])

    def _remove(self, table: DictionaryTable, names: Sequence[RowName]) -> int:
        for name in names:
            del table.rows[name]
            self._store.history.note_removal(table, name)
        table.num_evicted += len(names)
        return len(names)

    def _require_current(self) -> None:
        self._clocks.require_current(self.worker, self._incarnation)

    def _require_own(self, stamp: BatchStamp) -> None:
        if stamp.worker != self.worker:
            raise InvalidArgumentError(f"{stamp} is of another worker than the one joined, {self.worker}")

    def _own(self, plan: Plan) -> ReferencePlan:
        own = self._store.own(plan)
        self._require_own(own.stamp)
        return own

    def _bounded(self, rule: Update) -> tuple[Update, int]:
        """Returns the update with times far ahead bounded, and their number."""
        is_per_id = isinstance(rule.times, torch.Tensor)
        raw_times = rule.times.tolist() if isinstance(rule.times, torch.Tensor) else [int(rule.times)]
        times, num_ahead = bounded_times(raw_times, self._store.newest_time)
        return replace(rule, times=torch.tensor(times, dtype=torch.int64) if is_per_id else times[0]), num_ahead

    def _learn(self, merged: Mapping[Pair, IdContribution], rule: Update) -> Applied:
        tables, epoch = self._store.tables, self._store.history.epoch
        rates = self._rates_by_table(rule.learning_rates.numpy())
        _refuse_nonfinite(tables, merged)
        updated = inserted = filtered = skipped = 0
        for (number, name), contribution in merged.items():
            table = tables[number]
            table.contents.newest_time = max(table.contents.newest_time, contribution.time)
            gradient = contribution.gradient * np.float32(rule.scale)
            if table.config.nonfinite == "skip" and not np.isfinite(gradient).all():
                skipped += 1
                continue
            row = table.rows.get(name)
            if row is None:
                if not table.is_admitted(name, contribution.count):
                    filtered += 1
                    continue
                row = table.insert(name, epoch)
                inserted += 1
            table.update(row, gradient, learning_rates=rates[number], latest=contribution.latest)
            row.time, row.epoch = contribution.time, epoch
            updated += 1
        return Applied(updated=updated, inserted=inserted, filtered=filtered, skipped=skipped)

    def _rates_by_table(self, rates: NDArray[np.float32]) -> list[list[np.float32]]:
        expected = self._store.schema.num_segments
        if rates.shape != (expected,):
            raise InvalidArgumentError(f"learning_rates must have {expected} entries, got {rates.shape}")
        if not (np.isfinite(rates) & (rates >= 0)).all():
            raise InvalidArgumentError(f"learning rates must be finite and >= 0, got {rates.tolist()}")
        remaining = iter(rates)
        return [[next(remaining) for _ in table.config.segments] for table in self._store.tables]


def _refuse_nonfinite(tables: Sequence[DictionaryTable], merged: Mapping[Pair, IdContribution]) -> None:
    for (number, name), contribution in merged.items():
        config = tables[number].config
        if config.nonfinite == "raise" and not np.isfinite(contribution.gradient).all():
            raise InvalidArgumentError(f"table {config.name!r}: the gradient of id {name.key} is not finite")
