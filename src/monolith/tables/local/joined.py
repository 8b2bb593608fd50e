"""One incarnation of a worker at rows in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from monolith import _core
from monolith.errors import FailedPreconditionError
from monolith.tables.arrays import new_rows, time_array
from monolith.tables.batch import Applied, BatchStamp, Finished, made_from
from monolith.tables.local.plan import LocalPlan, LocalRows, NativeSession
from monolith.tables.local.update import prepare_update, require_not_discarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.tables.batch import Pending, Plan, Rows, Update
    from monolith.tables.local.cut import LocalCut
    from monolith.tables.local.store import LocalStore

_SUBJECT = "local store"
_PER_UNIQUE_ID = 1


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


def stamp_from_core(stamp: _core.BatchStamp) -> BatchStamp:
    """Returns a stamp of the core as a plain value."""
    return BatchStamp(worker=stamp.worker, seq=stamp.seq, position=stamp.position, event_time_ms=stamp.event_time_ms)


def stamp_to_core(stamp: BatchStamp) -> _core.BatchStamp:
    """Returns a stamp as the core takes it."""
    return _core.BatchStamp(stamp.worker, stamp.seq, stamp.position, stamp.event_time_ms)
