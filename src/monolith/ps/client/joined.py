"""One incarnation of a worker on rows of parameter servers, and its reads and updates in flight.

The read of a single row, for debugging, is here too.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from monolith import _core
from monolith.errors import DeadlineExceededError, FailedPreconditionError, OpError
from monolith.ps.server.push_gates import rows_owner
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import NOTHING_APPLIED, Applied, made_from, new_rows, time_array
from monolith.tables.local import (
    NO_TICKET,
    LocalRows,
    NativeSession,
    RemotePlan,
    prepare_update,
    require_finite,
    require_not_discarded,
    stamp_from_core,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.ps.client.cluster import PsCluster
    from monolith.ps.client.store import PsStore
    from monolith.tables import Cut, Pending, Plan, Rows, Update
    from monolith.tables.local import PreparedUpdate

_SUBJECT = "parameter servers"
_NOTHING = -1
_ANY_INCARNATION = 0


class PsWorkerSession(NativeSession[RemotePlan]):
    """`monolith.tables.store.WorkerSession` over servers. Thread-safe.

    Calls go to all servers concurrently and return; each server applies those of one worker in order. If a server has
    lost the plans kept for some updates and cannot apply them, the next caller that waits for a result resends them in
    order.

    Servers may have applied different batches of the worker: it died between two of them, or one of them was restored.
    A worker that resumes after `applied`, the batch of the least advanced server, and sends the same batches under the
    same numbers, gives each server what it lacks; the others ignore duplicates. A worker that resumes at `next_seq`
    skips those batches.
    """

    def __init__(self, store: PsStore, worker: int) -> None:
        self._store: PsStore = store
        self.worker = worker
        joined = store.rows.join(worker, store.timeout_seconds)
        # Check after joining: a server restarted later rejects this incarnation, and a restore ends it.
        store.cluster.require_state(rows_owner(store.name))
        self._incarnations = [incarnation for incarnation, *_ in joined]
        stamps = [stamp for _, stamp, *_ in joined]
        known = [stamp for stamp in stamps if stamp is not None]
        self.applied_by_server = [None if stamp is None else stamp_from_core(stamp) for stamp in stamps]
        """Last applied batch of the worker at each server; None where there is none."""
        # A worker resumes after the least advanced server; the others ignore duplicates.
        least = min(known, key=lambda stamp: stamp.seq) if len(known) == len(stamps) else None
        self.applied = None if least is None else stamp_from_core(least)
        self.next_seq = max((stamp.seq + 1 for stamp in known), default=0)
        behind = [_NOTHING if stamp is None else stamp.seq for stamp in stamps]
        self._joined_behind = behind if len(set(behind)) > 1 else []
        store.newest_time.raise_to(max(newest for *_, newest, _ in joined))
        store.steps_of_others = joined[0][3]
        self._tickets = itertools.count(NO_TICKET + 1)
        self._order = threading.Lock()  # order of submitted calls
        self._settling = threading.RLock()
        self._pushes: deque[PendingRowPush] = deque()  # not confirmed yet, in order
        self._failed: list[PendingRowPush] = []  # perhaps not reported to the caller yet

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Reads the rows of the plan; servers keep the plan, with the places of its rows, for the update."""
        own = self._own(plan)
        if train:
            self._store.plans.open(own)
            own.ticket = own.ticket or next(self._tickets)  # a repeated read replaces what servers keep
        values = new_rows((own.num_values,))
        pull = self._store.rows.new_pull(
            own.core,
            values,
            worker=self.worker,
            incarnations=self._incarnations if train else [],
            after=after,
            step=step,
            ticket=own.ticket if train else NO_TICKET,
        )
        with self._order:
            pull.begin(self._store.timeout_seconds)
        return PendingRows(self._store, pull, values, after=after, session=self, plan=own if train else None)

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """Sends one optimizer step per id to the servers; servers without an id of the batch get its stamp."""
        plans = [self._own(plan) for plan, _ in updates]
        times = time_array(rule.times, (sum(plan.core.num_ids for plan in plans),), _SUBJECT)
        clock = self._store.event_clock
        with self._order:
            bounded = clock.bounded(times)
            gradients = [gradient for _, gradient in updates]
            update = prepare_update(
                self._store.native,
                plans,
                gradients,
                rule,
                bounded.times,
                incarnation=_ANY_INCARNATION,
                subject=_SUBJECT,
            )
            require_not_discarded(plans, _SUBJECT)
            push = self._new_push(update, plans)
            push.begin(self._store.timeout_seconds)
            if update.plan.num_ids:
                self._store.newest_time.raise_to(int(bounded.times.max()))
            pending = PendingRowPush(self, push, update, on_applied=partial(clock.count, bounded))
            self._pushes.append(pending)
        self._collect()
        return pending

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update."""
        own = self._own(plan)
        self._store.plans.discard(own)
        if own.ticket != NO_TICKET:
            self._store.rows.drop(self.worker, [own.ticket])

    def flush(self, *, timeout_seconds: float) -> int:
        """Waits for every submitted update; returns the last batch that all servers have applied."""
        self.settle(timeout_seconds=timeout_seconds)
        with self._settling:
            failed, self._failed = self._failed, []
        for push in failed:
            push.raise_error()
        applied = self._store.rows.where(self.worker, self._incarnations, self._store.timeout_seconds)
        return min(last for last, _ in applied)

    def cut(self, *, timeout_seconds: float = 600.0) -> Cut:
        """Freezes the rows of the servers, after every submitted update."""
        self.flush(timeout_seconds=timeout_seconds)
        return self._store.cut(timeout_seconds=timeout_seconds)

    def evict(self, *, now: int) -> int:
        """Removes expired rows on all servers; returns their number."""
        self.flush(timeout_seconds=self._store.timeout_seconds)
        return self._store.evict(now=now)

    # Calls in flight

    def settle(self, last: PendingRowPush | None = None, *, timeout_seconds: float | None = None) -> None:
        """Waits until updates are applied or have failed: all up to `last`, or all submitted ones.

        Raises:
            DeadlineExceededError: the answers did not arrive in time; the updates stay pending.
        """
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._settling:
            while self._pushes and (last is None or not last.is_settled):
                self._pushes[0].wait(None if end is None else max(0.0, end - time.monotonic()))
                self._settle_first()

    def forget_failure(self, push: PendingRowPush) -> None:
        """Drops a failure that was reported to a caller."""
        with self._settling:
            self._failed = [pending for pending in self._failed if pending is not push]

    def _collect(self) -> None:
        """Settles updates that already have their answers, to free their memory; does not block."""
        if not self._settling.acquire(blocking=False):
            return
        try:
            while self._pushes and self._pushes[0].has_answers:
                self._settle_first()
        finally:
            self._settling.release()

    def _settle_first(self) -> None:
        push = self._pushes[0]
        push.settle(self._store)
        self._pushes.popleft()
        if push.has_failed:
            self._failed.append(push)

    # Implementation

    def _new_push(self, update: PreparedUpdate, plans: Sequence[RemotePlan]) -> _core.RowPush:
        is_finite = update.is_known_finite or _core.are_finite(update.gradient, update.scale)
        if not is_finite:
            require_finite(
                self._store.native, update.plan, update.gradient, update.scale
            )  # before any server receives a part of it
        tickets = [plan.ticket for plan in plans if plan.ticket != NO_TICKET]
        is_kept = len(plans) == 1 and bool(tickets)
        return self._store.rows.new_push(
            update.plan,
            update.push,
            incarnations=self._incarnations,
            gradients=update.gradient,
            rates=update.rates,
            times=update.times,
            latest=update.latest,
            step=update.step,
            scale=update.scale,
            known_finite=is_finite,
            known_time=self._store.newest_time(),
            ticket=tickets[0] if is_kept else NO_TICKET,
            dropped=[] if is_kept else tickets,
            joined_behind=self._joined_behind,
        )


class PendingRows:
    """`monolith.tables.batch.Pending` of rows. Thread-safe.

    `after` is the batch whose update they must contain. A read without a worker has no session; one for training has
    opened `plan`.
    """

    def __init__(
        self,
        store: PsStore,
        pull: _core.RowPull,
        values: NDArray[np.float32],
        *,
        after: int = NOTHING_APPLIED,
        session: PsWorkerSession | None = None,
        plan: RemotePlan | None = None,
    ) -> None:
        self._store = store
        self._pull = pull
        self._values = values
        self._after = after
        self._session = session
        self._plan = plan
        self._lock = threading.Lock()
        self._rows: LocalRows | None = None
        self._error: OpError | None = None

    def done(self) -> bool:
        """Returns whether the answers of all servers have arrived."""
        return self._rows is not None or self._error is not None or self._pull.done

    def result(self, timeout_seconds: float | None = None) -> Rows:
        """Waits for the rows and returns them."""
        with self._lock:
            if self._rows is None and self._error is None:
                _wait(self._pull, timeout_seconds)
                self._finish()
            if self._error is not None:
                raise self._error
            assert self._rows is not None  # noqa: S101 - one of the two is set
            return self._rows

    def _finish(self) -> None:
        try:
            seen = self._seen()
        except OpError as error:
            self._error = error
            if self._plan is not None:
                self._store.plans.reject(self._plan)
            return
        self._rows = LocalRows(torch.from_numpy(self._values), seen if self._session else NOTHING_APPLIED)

    def _seen(self) -> int:
        """Returns the last batch of the worker in the rows."""
        is_lacking, seen, newest = self._pull.finish()
        if is_lacking and self._session is not None:
            # A server lacked the plan of a push that comes first; `settle` resends the push with its ids.
            self._session.settle()
            self._pull.begin(self._store.timeout_seconds)
            is_lacking, seen, newest = self._pull.finish()
        if is_lacking:
            worker = "of its worker" if self._session is None else f"of worker {self._session.worker}"
            raise FailedPreconditionError(
                f"{_SUBJECT}: cannot read after batch {self._after} {worker}: its last applied batch is {seen};"
                " apply it first"
            )
        self._store.newest_time.raise_to(newest)
        return seen


class PendingRowPush:
    """`monolith.tables.batch.Pending` of the result of an update. Thread-safe; its worker settles updates in order."""

    def __init__(
        self, session: PsWorkerSession, push: _core.RowPush, update: PreparedUpdate, *, on_applied: Callable[[], None]
    ) -> None:
        self._session = session
        self._push = push
        self._update = update
        self._on_applied = on_applied
        self._applied: Applied | None = None
        self._error: OpError | None = None

    @property
    def has_answers(self) -> bool:
        """Whether the answers of all servers have arrived."""
        return self.is_settled or self._push.done

    @property
    def is_settled(self) -> bool:
        """Whether the outcome is known."""
        return self._applied is not None or self._error is not None

    @property
    def has_failed(self) -> bool:
        """Whether it failed; the error may not be reported yet."""
        return self._error is not None

    def done(self) -> bool:
        """Returns whether the answers of all servers have arrived."""
        return self.has_answers

    def result(self, timeout_seconds: float | None = None) -> Applied:
        """Waits until all servers have applied the update, and returns its result."""
        self._session.settle(self, timeout_seconds=timeout_seconds)
        self.raise_error()
        assert self._applied is not None  # noqa: S101 - settled without an error
        return self._applied

    def raise_error(self) -> None:
        """Raises the error of a failed update; `flush` does not report it again."""
        if self._error is not None:
            self._session.forget_failure(self)
            raise self._error

    # For its worker

    def wait(self, timeout_seconds: float | None) -> None:
        """Waits for the answers."""
        _wait(self._push, timeout_seconds)

    def settle(self, store: PsStore) -> None:
        """Reads the answers. REQUIRES: earlier updates are settled."""
        try:
            applied, newest, steps_of_others = self._push.finish(store.timeout_seconds)
        except OpError as error:
            self._error = error
            return
        store.newest_time.raise_to(newest)
        store.steps_of_others = steps_of_others
        store.plans.close_applied(self._update.plans)
        self._applied = made_from(Applied, applied)
        if not self._applied.duplicate:
            self._on_applied()


def _wait(call: _core.RowPull | _core.RowPush, timeout_seconds: float | None) -> None:
    """Waits for the answers, or for the call's own time limit.

    Raises:
        DeadlineExceededError: the answers did not arrive in time.
    """
    if timeout_seconds is not None and not call.wait_for(timeout_seconds):
        raise DeadlineExceededError(f"{_SUBJECT}: no answer within {timeout_seconds:g} s; it is still awaited")


@dataclass(frozen=True, slots=True)
class FoundRow:
    """One row."""

    server: int
    """Index of the server that has it."""
    weights: tuple[float, ...]


def find_row(cluster: PsCluster, store: str, table: str, key: int, bucket: int) -> FoundRow | None:
    """Returns the row of a key, from the server that has it; None: there is none.

    Raises:
        NotFoundError: no such store or table.
    """
    request = messages.LookRowRequest(store=store, table=table, key=key, bucket=bucket)
    for server, answer in enumerate(cluster.ask("LookRow", request)):
        if answer.found:
            return FoundRow(server, tuple(answer.weights))
    return None
