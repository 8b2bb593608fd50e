"""A module as a worker at its store: its worker number, its last push, and its next step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from monolith.errors import FailedPreconditionError
from monolith.forks import fork_safe
from monolith.tables import NOTHING_APPLIED, BatchStamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.tables import Applied, Cut, Pending, Plan, Rows, Store, Update, WorkerSession


class Push(NamedTuple):
    """An update that was submitted to a store, and the state of its worker before it."""

    pending: Pending[Applied]
    session: WorkerSession
    """The incarnation that submitted it."""
    newest: int
    """Number of its last batch."""
    step: int
    last_push: int
    global_step: int


class StoreWorker:
    """One worker at one store; shared by a module and its copies, which train the same rows. Thread-safe.

    It joins the store with the first batch to be trained: a module that only looks up has no incarnation.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = fork_safe(threading.RLock())
        self._number = 0
        self._session: WorkerSession | None = None
        self._former: WorkerSession | None = None
        """The previous incarnation, which ends the plans that it opened."""
        self._next_seq = 0
        self._last_push = NOTHING_APPLIED
        self.global_step = 0
        """Number of the next step."""

    def join(self, number: int | None = None) -> WorkerSession:
        """Begins a new incarnation of this or another worker; batch numbers continue after those of the store."""
        with self._lock:
            self._number = self._number if number is None else number
            session = self._session = self.store.join(self._number)
            self._last_push = NOTHING_APPLIED if session.applied is None else session.applied.seq
            # Where a worker died between two owners, some have batches that others lack: they are sent again with their
            # numbers, so that owners that lack them apply them and the others detect duplicates.
            behind = self._last_push + 1
            self._next_seq = behind if session.next_seq > behind else max(self._next_seq, behind)
            return session

    def leave(self) -> None:
        """Lets the next batch to be trained join again, after the rows were restored to another state."""
        with self._lock:
            self._former, self._session, self._next_seq = self._session, None, 0

    @property
    def session(self) -> WorkerSession:
        """The current incarnation; begins one if there is none."""
        with self._lock:
            return self.join() if self._session is None else self._session

    def next_seq(self, number: int | None = None) -> int:
        """Returns the next batch number of this or another worker: every owner of rows has all batches below it."""
        with self._lock:
            self._joined_as(self._number if number is None else number)
            return self._next_seq

    def new_stamp(self, *, train: bool) -> BatchStamp:
        """Returns the stamp of a batch that came without one; a batch to be trained gets a number not used before."""
        with self._lock:
            if train:
                _ = self.session
                self._next_seq += 1
            return BatchStamp(worker=self._number, seq=max(0, self._next_seq - 1))

    def begin_read(self, plan: Plan, *, train: bool) -> Pending[Rows]:
        """Starts reading the rows of a plan, with every update submitted so far."""
        if train:
            session = self._joined_as(plan.stamp.worker)
        elif self._session is not None and plan.stamp.worker == self._number:
            session = self._session
        else:
            return self.store.read(plan, step=self.global_step)
        return session.read(plan, after=self._last_push, step=self.global_step, train=train)

    def read(self, plan: Plan, *, train: bool) -> Tensor:
        """Reads the rows of a plan, with every update submitted so far."""
        return self.begin_read(plan, train=train).result().values

    def submit(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Push:
        """Submits an update; `rule.previous` must be `last_push`.

        From now on the update counts as pushed: the next push names it, and the next read comes after it. If it fails,
        call `rollback`.
        """
        newest = max(plan.stamp.seq for plan, _ in updates)
        session = self._joined_as(updates[0][0].stamp.worker)
        pending = session.apply(updates, rule)
        with self._lock:
            push = Push(pending, session, newest, rule.step, self._last_push, self.global_step)
            self._last_push = max(self._last_push, newest)
            self._next_seq = max(self._next_seq, newest + 1)
            self.global_step = rule.step + 1
        return push

    def confirm(self, push: Push) -> None:
        """Confirms a push that the store has applied, even if one before it was taken back meanwhile."""
        with self._lock:
            if push.session is self._session:
                self._last_push = max(self._last_push, push.newest)

    def rollback(self, push: Push) -> None:
        """Rolls back a failed push: the next push names the one before it. Its batch numbers are not reused."""
        with self._lock:
            if push.session is self._session:
                self._last_push = min(self._last_push, push.last_push)
            if self.global_step == push.step + 1:
                self.global_step = push.global_step

    @property
    def last_push(self) -> int:
        """Number of the last batch that was submitted and did not fail; -1 before the first."""
        return self._last_push

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update."""
        session = self._session or self._former
        if session is not None:
            session.discard(plan)

    def flush(self, *, timeout_seconds: float) -> None:
        """Waits until every submitted update is in the rows."""
        if self._session is not None:
            self._session.flush(timeout_seconds=timeout_seconds)

    def cut(self, *, timeout_seconds: float) -> Cut:
        """Takes a consistent cut of the store, with every update made so far."""
        if self._session is None:
            return self.store.cut(timeout_seconds=timeout_seconds)
        return self._session.cut(timeout_seconds=timeout_seconds)

    def _joined_as(self, number: int) -> WorkerSession:
        """Returns the incarnation that trains batches of this worker."""
        session = self._session
        if session is None:
            return self.join(number)
        if number != session.worker:
            raise FailedPreconditionError(
                f"Embeddings: a batch of worker {number}, but the module has joined its store as worker"
                f" {session.worker}; call join({number}) first, or stamp its batches as worker {session.worker}"
            )
        return session
