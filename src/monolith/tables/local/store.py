"""The store whose rows live in this process, and the sessions of its workers."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.tables.arrays import NO_STEP, new_rows, time_array
from monolith.tables.batch import NOTHING_APPLIED, Applied, Finished, made_from
from monolith.tables.keyed_rows import KeyedValues
from monolith.tables.local.group_store import GroupSession, GroupStore
from monolith.tables.local.native_tables import NativeTables
from monolith.tables.local.plan import LocalPlan, LocalRows, prepare_update, require_not_discarded
from monolith.tables.store import Traits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import Pending, Plan, Rows, Update
    from monolith.tables.keyed_rows import KeyedRows
    from monolith.tables.table_config import TableConfig

_SUBJECT = "local store"
_PER_UNIQUE_ID = 1


class LocalStore(GroupStore[LocalPlan]):
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

    def __init__(self, configs: Mapping[str, TableConfig]) -> None:
        native = NativeTables(configs)
        super().__init__(native, native.core)
        self.core = native.core

    def join(self, worker: int) -> LocalWorkerSession:
        """Begins an incarnation of a worker."""
        return LocalWorkerSession(self, worker)

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        """Returns the current rows."""
        own = self.own(plan)
        values = new_rows((own.num_values,))
        self.core.read(own.core, values, step)
        return Finished(LocalRows(torch.from_numpy(values), NOTHING_APPLIED))

    # Serving

    def lookup(self, keyed: KeyedRows, *, step: int = 0) -> KeyedValues:
        """Returns the current rows of some keys."""
        core, dims = self.core, np.array(self.native.dims, np.int64)
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
                self.core.assign(number, keys, weights, times, False, NO_STEP, buckets)
        clock.count(bounded)


class LocalShards(LocalStore):
    """Former name of `LocalStore`: rows of one process are no longer divided. Deprecated."""

    def __init__(self, configs: Mapping[str, TableConfig], *, num_shards: int) -> None:  # noqa: ARG002 - ignored
        text = "monolith.tables.LocalShards is deprecated and will be removed in the next version: use LocalStore"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        super().__init__(configs)


class LocalWorkerSession(GroupSession[LocalPlan]):
    """`monolith.tables.store.WorkerSession` at a `LocalStore`: every update is in the rows when its call returns."""

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Returns the rows of the plan; `after` must be applied already, since no update is ever in flight."""
        own, seen = self._begin_read(plan, after=after, train=train)
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
