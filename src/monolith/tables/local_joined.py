"""One incarnation of a worker at rows in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from monolith import _core
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables._arrays import finite_scale, float_array, time_array
from monolith.tables._merged_update import (
    merge_updates,
    num_latest,
    require_finite,
    require_latest_of_all,
    spread_latest,
)
from monolith.tables.batch import Applied, BatchStamp, Finished
from monolith.tables.batch_memory import new_rows
from monolith.tables.local_plan import LocalRows, PreparedUpdate
from monolith.tables.rows import applied_from_core

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import Pending, Plan, Rows, Update
    from monolith.tables.local_cut import LocalCut
    from monolith.tables.local_plan import LocalPlan
    from monolith.tables.local_store import LocalStore

_SUBJECT = "local store"
_PER_UNIQUE_ID = 1


class LocalJoined:
    """`monolith.tables.store.Joined` at a `LocalStore`: every update is in the rows when its call returns."""

    def __init__(self, store: LocalStore, worker: int) -> None:
        self._store = store
        self._core = store.native.core
        self.worker = worker
        self._incarnation, stamp = self._core.join(worker)
        self.applied = None if stamp is None else stamp_from_core(stamp)
        self.next_seq = 0 if stamp is None else stamp.seq + 1

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> LocalPlan:
        """Groups the ids of one batch of this worker."""
        if stamp.worker != self.worker:
            raise InvalidArgumentError(f"{_SUBJECT}: {stamp} is of another worker than the one joined, {self.worker}")
        return self._store.plan(ids, table_splits, stamp=stamp, buckets=buckets)

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Rows of the plan; `after` must be applied already, since nothing here is ever on its way."""
        own = self._own(plan)
        seen = self._core.last_applied(self.worker)
        if after > seen:
            raise FailedPreconditionError(
                f"{_SUBJECT}: asked to read after batch {after} of worker {self.worker}, but its last one applied is"
                f" {seen}; apply it first"
            )
        if train:
            self._core.require_current(self.worker, self._incarnation)
            self._store.plans.open(own)
        values = new_rows((own.num_values,))
        self._core.read(own.core, values, step)
        return Finished(LocalRows(torch.from_numpy(values), seen))

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """One optimizer step per id with the sum of its gradients; a batch applied before is not applied again."""
        clock = self._store.native.event_clock
        num_ids = sum(self._own(plan).core.num_ids for plan, _ in updates)
        bounded = clock.bounded(time_array(rule.times, (num_ids,), _SUBJECT))
        applied = self.commit(self.prepare(updates, rule, bounded.times))
        if not applied.duplicate:
            clock.count(bounded)
        return Finished(applied)

    def prepare(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update, times: NDArray[np.int64]) -> PreparedUpdate:
        """Everything of `apply` but the update itself, with these times for those of the rule.

        What does not fit is refused here.
        """
        native = self._store.native
        plans = [self._own(plan) for plan, _ in updates]
        if not plans or len({id(plan) for plan in plans}) != len(plans):
            raise InvalidArgumentError(f"{_SUBJECT}: apply takes one or more plans, each once; got {len(plans)}")
        gradients = [
            float_array(gradient, (plan.num_values,), _SUBJECT, "gradient")
            for plan, (_, gradient) in zip(plans, updates, strict=True)
        ]
        return PreparedUpdate(
            plans=plans,
            push=self._push(plans, rule),
            merged=merge_updates(native, plans, gradients, times, self._latest(plans, rule)),
            rates=float_array(rule.learning_rates, (native.rate_splits[-1],), _SUBJECT, "learning_rates"),
            scale=finite_scale(rule.scale, _SUBJECT),
            rule=rule,
        )

    def require_applicable(self, update: PreparedUpdate) -> None:
        """Raises what `commit` would raise: for those who commit to several stores or to none."""
        if not self._core.is_duplicate(update.push) and not update.is_known_finite:
            require_finite(self._store.native, update.merged, update.scale)

    def commit(self, update: PreparedUpdate) -> Applied:
        """The update itself, unless its batches were applied before."""
        for plan in update.plans:
            if plan.status == "discarded":
                raise FailedPreconditionError(f"{_SUBJECT}: plan of {plan.stamp} was discarded; make a new one")
        merged, layout = update.merged, (_PER_UNIQUE_ID, None, None)
        applied = self._core.apply(
            merged.plan,
            merged.gradient,
            *layout,
            update.rates,
            update.rule.step,
            merged.times,
            update.scale,
            merged.latest,
            update.is_known_finite,
            update.push,
        )
        self._store.plans.close_applied(update.plans)
        return applied_from_core(applied)

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update."""
        self._store.plans.discard(self._own(plan))

    def flush(self, *, timeout_seconds: float) -> int:  # noqa: ARG002 - nothing is ever on its way
        """The last batch applied."""
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

    def _own(self, plan: Plan) -> LocalPlan:
        own = self._store.own(plan)
        if own.stamp.worker != self.worker:
            raise InvalidArgumentError(
                f"{_SUBJECT}: plan of {own.stamp} is of another worker than the one joined, {self.worker}"
            )
        return own

    def _push(self, plans: Sequence[LocalPlan], rule: Update) -> _core.Push:
        last = plans[0].stamp if len(plans) == 1 else max((plan.stamp for plan in plans), key=lambda each: each.seq)
        return _core.Push(
            worker=self.worker,
            incarnation=self._incarnation,
            first_seq=min(plan.stamp.seq for plan in plans),
            seq=last.seq,
            previous=rule.previous,
            position=last.position,
            event_time_ms=last.event_time_ms,
        )

    def _latest(self, plans: Sequence[LocalPlan], rule: Update) -> list[NDArray[np.float32]] | None:
        native = self._store.native
        if rule.latest is None:
            return None
        require_latest_of_all(rule.latest, len(plans), _SUBJECT)
        if not any(native.uses_latest):
            return None
        return [
            spread_latest(native, plan.core, float_array(latest, (num_latest(native, plan.core),), _SUBJECT, "latest"))
            for plan, latest in zip(plans, rule.latest, strict=True)
        ]


def stamp_from_core(stamp: _core.BatchStamp) -> BatchStamp:
    """The same as a plain value."""
    return BatchStamp(worker=stamp.worker, seq=stamp.seq, position=stamp.position, event_time_ms=stamp.event_time_ms)
