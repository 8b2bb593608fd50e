"""One incarnation of a worker at rows that the ranks share: its calls run in the line, with those of other ranks."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from monolith.collective.sharded.plan import IdMessage, ShardedPlan
from monolith.collective.sharded.update import HandedOver
from monolith.errors import DeadlineExceededError
from monolith.tables import time_array
from monolith.tables.local import NativeSession, prepare_update, stamp_from_core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.collective.serial_executor import LineCall
    from monolith.collective.sharded.store import ShardedStore
    from monolith.tables import Applied, Cut, Pending, Plan, Rows, Update

_SUBJECT = "sharded store"


class ShardedWorkerSession(NativeSession[ShardedPlan]):
    """`monolith.tables.store.WorkerSession` at a `ShardedStore`. Thread-safe.

    Reads and updates are submitted to the line and return; there they run in order, together with the reads and updates
    of the other ranks. Joining and discarding make no call to other ranks.
    """

    def __init__(self, store: ShardedStore, worker: int) -> None:
        self._store: ShardedStore = store
        self._core = store.native.core
        self.worker = worker
        self._incarnation, stamp = store.join_here(worker)
        self.applied = None if stamp is None else stamp_from_core(stamp)
        self.applied_by_server = [self.applied for owned in store.owned if owned]
        """Its last batch at each rank that has buckets; the same everywhere, since all ranks see every update."""
        self.next_seq = 0 if stamp is None else stamp.seq + 1
        self._lock = threading.Lock()
        self._pushes: deque[_Push] = deque()

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Reads the rows of the plan; owners keep the plan, with the locations of its rows, for the update."""
        own = self._own(plan)
        if train:
            self._core.require_current(self.worker, self._incarnation)
            self._store.plans.open(own)
            self._store.exchange.tickets.open(own)
        return self._store.submit_read(own, after=after, step=step, train=train)

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """Submits one optimizer step per id; all ranks with a batch make it together."""
        plans = [self._own(plan) for plan, _ in updates]
        times = time_array(rule.times, (sum(plan.core.num_ids for plan in plans),), _SUBJECT)
        native = self._store.native
        gradients = [gradient for _, gradient in updates]
        update = prepare_update(native, plans, gradients, rule, times, incarnation=self._incarnation, subject=_SUBJECT)
        if len(plans) == 1:
            message = plans[0].message
        else:
            last = max((plan.stamp for plan in plans), key=lambda stamp: stamp.seq)
            message = IdMessage(self._store.parts_of(update.plan), last)
        push = _Push(self._store.submit_update(HandedOver(plans, update, message)))
        with self._lock:
            while self._pushes and self._pushes[0].is_over:
                self._pushes.popleft()
            self._pushes.append(push)
        return push

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update; the owners are notified with the next call."""
        own = self._own(plan)
        self._store.plans.discard(own)
        self._store.exchange.tickets.close(own)

    def flush(self, *, timeout_seconds: float) -> int:
        """Waits for every submitted update; returns the last batch, which all owners have."""
        self._core.require_current(self.worker, self._incarnation)
        end = time.monotonic() + timeout_seconds
        with self._lock:
            pushes = list(self._pushes)
        for push in pushes:
            push.wait(max(0.0, end - time.monotonic()))
        with self._lock:
            self._pushes.clear()
        for push in pushes:
            push.raise_untold()
        return self._core.last_applied(self.worker)

    def cut(self, *, timeout_seconds: float = 600.0) -> Cut:
        """Freezes the rows and stamps of all ranks, with every submitted update."""
        self.flush(timeout_seconds=timeout_seconds)
        return self._store.cut(timeout_seconds=timeout_seconds)

    def evict(self, *, now: int) -> int:
        """Removes expired rows on all ranks."""
        self._core.require_current(self.worker, self._incarnation)
        return self._store.evict(now=now)


class _Push:
    """`monolith.tables.batch.Pending` of an update; records whether its error was raised to a caller."""

    def __init__(self, call: LineCall[Applied]) -> None:
        self._call = call
        self._was_told = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and no error remains to be raised."""
        return self._call.done() and (self._was_told or self._error() is None)

    def done(self) -> bool:
        """Returns True iff `result` returns without waiting."""
        return self._call.done()

    def result(self, timeout_seconds: float | None = None) -> Applied:
        """Returns the result of the update."""
        self.wait(timeout_seconds)
        self._was_told = True
        return self._call.result()

    def wait(self, timeout_seconds: float | None) -> None:
        """Returns when the update has ended, with or without an error.

        Raises:
            DeadlineExceededError: it has not ended in time.
        """
        try:
            self._call.result(timeout_seconds)
        except DeadlineExceededError:
            if not self._call.done():
                raise
        except Exception:  # noqa: BLE001, S110 - raised by `result`
            pass

    def raise_untold(self) -> None:
        """Raises the error of the update, unless it was raised before."""
        if not self._was_told:
            self._was_told = True
            self._call.result()

    def _error(self) -> Exception | None:
        try:
            self._call.result()
        except Exception as error:  # noqa: BLE001 - only inspected
            return error
        return None
