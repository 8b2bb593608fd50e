"""The table steps of one worker, as a model makes them: plan, read, apply, through the interface of stores."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from monolith.cli._bench import ours, workload
from monolith.cli._bench.peers import LEARNING_RATE
from monolith.tables.batch import NOTHING_APPLIED, BatchStamp, Update

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.cli._bench.setting import Setting
    from monolith.cli._bench.workload import WorkloadBatch
    from monolith.tables import Store, TableConfig
    from monolith.tables.batch import Applied, Pending, Plan, Rows

TABLE = "ids"
FILLER = 1_000
"""Number of the worker that gives every id its row before anything is measured."""
PUSH_SECONDS = 60.0


def configs() -> Mapping[str, TableConfig]:
    """Returns one table of the workload."""
    return {TABLE: ours.table_config()}


def fill(store: Store, num_rows: int) -> None:
    """Gives every id of the workload a row, by updates that change nothing."""
    steps = TableSteps(store, FILLER, torch.zeros(ours.ROW_STEP * ours.DIM))
    for ids in ours.id_ranges(num_rows, ours.ROW_STEP):
        steps.train_ids(ids)


def gradient_of(setting: Setting) -> Tensor:
    """Long enough for every batch, flat."""
    return workload.output_gradient(setting.ids_per_batch, ours.DIM).flatten()


class TableSteps:
    """Steps of one worker on a store. Not thread-safe.

    Args:
        store: The store of the rows.
        worker: The number under which it joins.
        gradient: Flat; as much of it as a batch has distinct rows is its gradient.
    """

    def __init__(self, store: Store, worker: int, gradient: Tensor) -> None:
        self._joined = store.join(worker)
        self._gradient = gradient
        self._rates = torch.full((1,), LEARNING_RATE)
        self._next = self._joined.next_seq
        self._last = NOTHING_APPLIED if self._joined.applied is None else self._joined.applied.seq
        self._applied = self._last
        self._reading: tuple[Plan, Pending[Rows]] | None = None
        self._postponed: Plan | None = None
        self._push: tuple[int, Pending[Applied]] | None = None
        self.plan_seconds = 0.0
        """Processor time of this process that went into plans."""

    def train(self, batch: WorkloadBatch) -> None:
        """Read and update, each waited for."""
        self.train_ids(batch.ids)

    def train_ids(self, ids: Tensor) -> None:
        """`train` on any ids."""
        plan = self._plan(ids)
        self._joined.read(plan, after=self._applied, step=0, train=True).result()
        self._start_push(plan)
        self._end_push()

    def train_ahead(self, batch: WorkloadBatch) -> None:
        """Trains with the rows of the next batch read ahead, and the last update applied concurrently."""
        plan = self._plan(batch.ids)
        reading = self._joined.read(plan, after=self._applied, step=0, train=True)
        before, self._reading = self._reading, (plan, reading)
        self._end_push()
        if self._postponed is not None:
            self._start_push(self._postponed)
        self._postponed = None
        if before is not None:
            before[1].result()
            self._postponed = before[0]

    def settle(self) -> None:
        """Waits for operations of `train_ahead` in flight, and discards rows read ahead."""
        self._end_push()
        if self._postponed is not None:
            self._start_push(self._postponed)
            self._end_push()
        if self._reading is not None:
            self._reading[1].result()
            self._joined.discard(self._reading[0])
        self._postponed = self._reading = None

    def _plan(self, ids: Tensor) -> Plan:
        begun = time.process_time()
        stamp = BatchStamp(worker=self._joined.worker, seq=self._next)
        plan = self._joined.plan(ids, torch.tensor([0, len(ids)]), stamp=stamp)
        self._next += 1
        self.plan_seconds += time.process_time() - begun
        return plan

    def _start_push(self, plan: Plan) -> None:
        rule = Update(step=0, learning_rates=self._rates, times=ours.TIME, previous=self._last, known_finite=True)
        self._last = plan.stamp.seq
        self._push = (self._last, self._joined.apply([(plan, self._gradient[: plan.num_values])], rule))

    def _end_push(self) -> None:
        if self._push is not None:
            self._push[1].result(PUSH_SECONDS)
            self._applied, self._push = self._push[0], None
