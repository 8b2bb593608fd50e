"""A module as a worker at its store, and the steps that it submits there.

A step turns the gradients of passes into one update.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError, OpError
from monolith.forks import fork_safe
from monolith.nn.embeddings.pooling import refusal_of
from monolith.tables import NOTHING_APPLIED, BatchStamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from monolith.nn.embeddings.passes import BatchPass, PassRegistry
    from monolith.nn.embeddings.pooling import PooledLayout
    from monolith.tables import Applied, Cut, Pending, Plan, Rows, Store, Update, WorkerSession


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

    def submit(self, step: GradientStep, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """Submits the update of a step; `rule.previous` must be `last_push`.

        From now on the update counts as pushed: the next push names it, and the next read comes after it. If it fails,
        call `rollback`.
        """
        newest = max(plan.stamp.seq for plan, _ in updates)
        session = self._joined_as(updates[0][0].stamp.worker)
        pending = session.apply(updates, rule)
        with self._lock:
            step.session, step.newest, step.number = session, newest, rule.step
            step.former = self._last_push, self.global_step
            self._last_push = max(self._last_push, newest)
            self._next_seq = max(self._next_seq, newest + 1)
            self.global_step = rule.step + 1
        return pending

    def confirm(self, step: GradientStep) -> None:
        """Confirms a push that the store has applied, even if one before it was taken back meanwhile."""
        with self._lock:
            if step.session is self._session:
                self._last_push = max(self._last_push, step.newest)

    def rollback(self, step: GradientStep) -> None:
        """Rolls back a failed push: the next push names the one before it. Its batch numbers are not reused."""
        last_push, global_step = step.former
        with self._lock:
            if step.session is self._session:
                self._last_push = min(self._last_push, last_push)
            if self.global_step == step.number + 1:
                self.global_step = global_step

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


class GradientStep:
    """Gradients that `Embeddings.take_step` took, to be submitted to the store.

    It ends in exactly one `apply`, or `begin` and `result`, or `drop`. Made in one thread, begun in any; after that it
    is a `Pending`. Begin the steps of one module in the order in which they were taken, and get their results in that
    order.
    """

    __slots__ = (
        "_applied",
        "_error",
        "_layout",
        "_passes",
        "_pending",
        "_registry",
        "_rule",
        "_scale",
        "_takes_finite_only",
        "_worker",
        "former",
        "newest",
        "number",
        "session",
    )
    session: WorkerSession
    """The incarnation that submitted it. This and what follows are set by `StoreWorker.submit`, under its lock."""
    newest: int
    """Number of its last batch."""
    number: int
    """Number of the step."""
    former: tuple[int, int]
    """The last push and the next step of the worker before it."""

    def __init__(
        self,
        worker: StoreWorker,
        registry: PassRegistry,
        passes: Sequence[BatchPass],
        rule: Callable[..., Update],
        layout: PooledLayout,
        *,
        takes_finite_only: bool = True,
    ) -> None:
        """Takes a function that makes the update from the number of the `previous` push."""
        self._layout = layout
        self._takes_finite_only = takes_finite_only
        self._worker = worker
        self._registry = registry
        self._passes = passes
        self._rule = rule
        self._scale = 1.0
        self._pending: Pending[Applied] | None = None
        self._applied: Applied | None = None
        self._error: BaseException | None = None
        registry.take(passes)

    @property
    def is_remote(self) -> bool:
        """Whether `begin` returns while the update is still in flight to other processes."""
        return self._worker.store.traits.remote

    def refusal(self) -> str | None:
        """Returns why the store would reject the step: the id whose gradient is not finite; None: it would not.

        For ranks that make a step together, or none of them does.
        """
        if not self._takes_finite_only:
            return None
        scale = self._rule(previous=NOTHING_APPLIED).scale
        if abs(scale) <= 1 and all(batch_pass.is_finite for batch_pass in self._passes):
            return None
        gradients = [batch_pass.gradient for batch_pass in self._passes if batch_pass.gradient is not None]
        if len(gradients) == 1 and bool(torch.isfinite(gradients[0].sum() * scale)):
            return None
        return refusal_of(self._passes, self._layout, scale)

    def apply(self) -> Applied:
        """Makes one optimizer step for every id; any thread may call it.

        Raises:
            InvalidArgumentError: a gradient is not finite. No row changed; the gradients were dropped, as they would be
                rejected again and the next step with them. After any other error they are back in the module.
        """
        self.begin()
        try:
            return self.result()
        except BaseException:
            self.drop()  # an interrupted wait; after an error this does nothing
            raise

    def begin(self) -> None:
        """Submits the update to the store. From then on reads of the module come after it. Raises like `apply`."""
        updates = [
            (batch_pass.plan, batch_pass.gradient) for batch_pass in self._passes if batch_pass.gradient is not None
        ]
        try:
            rule = self._rule(previous=self._worker.last_push)
            self._scale = rule.scale
            self._pending = self._worker.submit(self, updates, rule)
        except BaseException as error:
            self._error = self._refuse(error)
            if self._error is not error:
                raise self._error from error
            raise
        self._registry.submit(self._passes)

    def done(self) -> bool:
        """Returns whether `result` returns without waiting."""
        return self._is_over or (self._pending is not None and self._pending.done())

    def result(self, timeout_seconds: float | None = None) -> Applied:
        """Waits for the store and returns the counts of the update, which must have been begun.

        Raises:
            DeadlineExceededError: no answer came within `timeout_seconds`; call again to keep waiting.
            OpError: what `apply` raises, with the name of the batch.
        """
        pending = self._pending
        if not self._is_over and pending is not None:
            try:
                self._applied = pending.result(timeout_seconds)
            except Exception as error:
                if timeout_seconds is not None and not pending.done():
                    raise
                self._worker.rollback(self)
                self._error = self._refuse(error)
            else:
                self._worker.confirm(self)
                self._registry.close_applied(self._passes)
                _require_new(self._applied, self._passes)
        if self._error is not None:
            named = self._named(self._error)
            raise named from (named.__cause__ if named is self._error else self._error)
        if self._applied is None:
            raise FailedPreconditionError("step: result() was called before begin(); call begin() first")
        return self._applied

    def drop(self) -> None:
        """Abandons the update; a submitted one is completed or failed by the store. Idempotent."""
        if self._is_over:
            return
        if self._pending is None:
            self._registry.drop(self._passes)
        else:
            self._registry.close_submitted(self._passes)

    @property
    def _is_over(self) -> bool:
        return self._applied is not None or self._error is not None

    def _refuse(self, error: BaseException) -> BaseException:
        """Ends or gives back the passes of a step that was not applied; returns the error to raise."""
        if not isinstance(error, InvalidArgumentError):
            self._registry.give_back(self._passes)
            return error
        self._registry.drop(self._passes)
        reason = refusal_of(self._passes, self._layout, self._scale) if "not finite" in str(error) else None
        if reason is None:
            return error
        rejection = InvalidArgumentError(reason)
        rejection.__cause__ = error
        return rejection

    def _named(self, error: BaseException) -> BaseException:
        """Adds the batch to an error, which may be raised in a later step than that of the batch."""
        if not isinstance(error, OpError):
            return error
        first, last = self._passes[0].stamp, self._passes[-1].stamp
        which = f"batch {last.seq}" if first.seq == last.seq else f"batches {first.seq} to {last.seq}"
        return type(error)(f"step: the push of {which} of worker {last.worker} failed: {error}")


def _require_new(applied: Applied, passes: Sequence[BatchPass]) -> None:
    """Raises if batch numbers do not match the store's, which would take every step for a duplicate."""
    if applied.duplicate and not all(batch_pass.is_replayable for batch_pass in passes):
        raise FailedPreconditionError(
            f"step: the store had applied batch {passes[-1].stamp.seq} before and did nothing; the batch was planned"
            " before the module joined its store: plan it again"
        )


def times_of(passes: Sequence[BatchPass], now: int) -> int | Tensor:
    """Returns the times of an update: one number if all agree, else one for each id of all passes end to end."""
    times = [now if batch_pass.times is None else batch_pass.times for batch_pass in passes]
    if all(isinstance(time, int) for time in times) and len(set(times)) == 1:
        return times[0]
    sizes = [len(batch_pass.plan.inverse) for batch_pass in passes]
    return torch.cat(
        [
            torch.full((size,), time, dtype=torch.int64) if isinstance(time, int) else time
            for time, size in zip(times, sizes, strict=True)
        ]
    )
