"""One incarnation of a worker at several shards of this process."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.errors import InvalidArgumentError
from monolith.tables.arrays import float_array, time_array
from monolith.tables.batch import Applied, Finished
from monolith.tables.local.plan import LocalRows
from monolith.tables.local.update import num_latest, require_latest_of_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import BatchStamp, Pending, Plan, Rows, Update
    from monolith.tables.local.cut import ShardsCut
    from monolith.tables.local.shard_plan import ShardPlan
    from monolith.tables.local.shards import LocalShards

_SUBJECT = "local shards"


class ShardsJoined:
    """`monolith.tables.store.WorkerSession` at `LocalShards`: no shard changes before all have accepted an update."""

    def __init__(self, store: LocalShards, worker: int) -> None:
        self._store = store
        self._parts = [shard.join(worker) for shard in store.shards]
        self.worker = worker
        # A worker resumes after the last batch of the shard that has least; the other shards ignore duplicates.
        least = min(self._parts, key=lambda part: part.next_seq)
        self.applied = least.applied
        self.applied_by_server = [part.applied for part in self._parts]
        """The worker's last batch at each shard; None where there was none."""
        behind = [part.next_seq - 1 for part in self._parts]
        self._joined_behind = behind if len(set(behind)) > 1 else None
        self.next_seq = max(part.next_seq for part in self._parts)

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> ShardPlan:
        """Groups the ids of one batch of this worker by shard."""
        if stamp.worker != self.worker:
            raise InvalidArgumentError(f"{_SUBJECT}: {stamp} is of another worker than the one joined, {self.worker}")
        return self._store.plan(ids, table_splits, stamp=stamp, buckets=buckets)

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Returns the rows of the plan, of all shards after the same updates."""
        parts = self._store.own(plan).parts
        with self._store.lock:
            rows = [
                joined.read(part, after=after, step=step, train=train).result()
                for joined, part in zip(self._parts, parts, strict=True)
            ]
        return Finished(LocalRows(torch.cat([each.values for each in rows]), min(each.seen for each in rows)))

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """Makes one optimizer step per id with the sum of its gradients; skips a batch that was applied before."""
        plans = [self._store.own(plan) for plan, _ in updates]
        gradients = [
            np.split(float_array(gradient, (plan.num_values,), _SUBJECT, "gradient"), np.cumsum(plan.part_values)[:-1])
            for plan, (_, gradient) in zip(plans, updates, strict=True)
        ]
        latest = self._latest(plans, rule)
        given = time_array(rule.times, (sum(len(plan.inverse) for plan in plans),), _SUBJECT)
        clock = self._store.event_clock
        with self._store.lock:
            bounded = clock.bounded(given)
            times = self._times_by_shard(plans, bounded.times)
            prepared = []
            first_seq = min((plan.stamp.seq for plan in plans), default=0)
            for number, joined in enumerate(self._parts):
                previous = self._previous(rule, number, first_seq)
                own = [
                    (plan.parts[number], torch.from_numpy(parts[number]))
                    for plan, parts in zip(plans, gradients, strict=True)
                ]
                own_latest = None if latest is None else [parts[number] for parts in latest]
                own_rule = replace(rule, latest=own_latest, previous=previous)
                prepared.append(joined.prepare(own, own_rule, times[number]))
            for joined, update in zip(self._parts, prepared, strict=True):
                joined.require_applicable(update)
            newest = int(bounded.times.max()) if any(len(plan.inverse) for plan in plans) else 0
            self._store.agree_on_clock()
            both = zip(self._parts, prepared, strict=True)
            applied = _whole([joined.commit(update, newest_time=newest) for joined, update in both])
            if not applied.duplicate:
                clock.count(bounded)
        return Finished(applied)

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update."""
        own = self._store.own(plan)
        with self._store.lock:
            for joined, part in zip(self._parts, own.parts, strict=True):
                joined.discard(part)

    def flush(self, *, timeout_seconds: float) -> int:
        """Returns the last batch that all shards have."""
        return min(joined.flush(timeout_seconds=timeout_seconds) for joined in self._parts)

    def cut(self, *, timeout_seconds: float = 600.0) -> ShardsCut:
        """Freezes the rows and stamps of all shards together."""
        self.flush(timeout_seconds=timeout_seconds)
        return self._store.cut(timeout_seconds=timeout_seconds)

    def evict(self, *, now: int) -> int:
        """Removes expired rows of all shards."""
        self.flush(timeout_seconds=0.0)
        return self._store.evict(now=now)

    def _previous(self, rule: Update, shard: int, first_seq: int) -> int:
        """Returns the previous batch for a shard: its own last batch, if it joined with more than the slowest shard."""
        had = rule.previous if self._joined_behind is None else self._joined_behind[shard]
        return had if rule.previous < had < first_seq else rule.previous

    def _times_by_shard(self, plans: Sequence[ShardPlan], times: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Returns the times of each shard's own ids."""
        if len(times) == 1:  # of all ids, or of the only one, which is not in every shard
            return [times] * len(self._parts)
        by_plan = np.split(times, np.cumsum([len(plan.inverse) for plan in plans])[:-1])
        return [
            np.concatenate([own[plan.positions[k]] for plan, own in zip(plans, by_plan, strict=True)])
            for k in range(len(self._parts))
        ]

    def _latest(self, plans: Sequence[ShardPlan], rule: Update) -> list[list[Tensor]] | None:
        """Returns latest rows by plan, then by shard."""
        if rule.latest is None:
            return None
        require_latest_of_all(rule.latest, len(plans), _SUBJECT)
        found = []
        for plan, given in zip(plans, rule.latest, strict=True):
            parts = zip(self._store.shards, plan.parts, strict=True)
            sizes = [num_latest(shard.native, part.core) for shard, part in parts]
            values: NDArray[np.float32] = float_array(given, (sum(sizes),), _SUBJECT, "latest")
            found.append([torch.from_numpy(part) for part in np.split(values, np.cumsum(sizes)[:-1])])
        return found


def _whole(parts: Sequence[Applied]) -> Applied:
    """Adds up the counts; a batch is a duplicate if it is one for every shard."""
    totals = {each.name: sum(getattr(part, each.name) for part in parts) for each in fields(Applied)}
    totals["duplicate"] = totals["duplicate"] == len(parts)
    return Applied(**totals)
