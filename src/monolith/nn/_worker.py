"""A module as a worker at its store: which one it is, which batches it has pushed, and which step comes next."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from monolith.errors import FailedPreconditionError
from monolith.forks import at_rest_in_forks
from monolith.tables.batch import NOTHING_APPLIED, BatchStamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.tables.batch import Applied, Pending, Plan, Rows, Update
    from monolith.tables.history import Cut
    from monolith.tables.store import Joined, Store


class Push(NamedTuple):
    """An update that was handed over to a store, and where its worker stood before it."""

    pending: Pending[Applied]
    joined: Joined
    """By which incarnation."""
    newest: int
    """Number of its last batch."""
    step: int
    last_push: int
    global_step: int


class StoreWorker:
    """One worker at one store; shared by a module and its copies, which train the same rows. Any thread may call it.

    It joins the store with the first batch that is to be trained: a module that only looks up disturbs nobody.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = at_rest_in_forks(threading.RLock())
        self._number = 0
        self._joined: Joined | None = None
        self._former: Joined | None = None
        """The incarnation before, by which plans that it opened are ended."""
        self._next_seq = 0
        self._last_push = NOTHING_APPLIED
        self.global_step = 0
        """Number of the next step."""

    def join(self, number: int | None = None) -> Joined:
        """Begins a new incarnation, as this worker or as the one it was; batches go on behind what the store has."""
        with self._lock:
            self._number = self._number if number is None else number
            joined = self._joined = self.store.join(self._number)
            self._last_push = NOTHING_APPLIED if joined.applied is None else joined.applied.seq
            # Where a worker died between two owners, some have batches that others lack: they come again under their
            # numbers, so that those who lack them take them and the others know them.
            behind = self._last_push + 1
            self._next_seq = behind if joined.next_seq > behind else max(self._next_seq, behind)
            return joined

    def leave(self) -> None:
        """Joins again with the next batch that is to be trained: the rows were put back to another moment."""
        with self._lock:
            self._former, self._joined, self._next_seq = self._joined, None, 0

    @property
    def joined(self) -> Joined:
        """The present incarnation; begun now if there is none."""
        with self._lock:
            return self.join() if self._joined is None else self._joined

    def next_seq(self, number: int | None = None) -> int:
        """The number of the next batch, of this worker or of the one it is: no owner of rows lacks one below it."""
        with self._lock:
            self._joined_as(self._number if number is None else number)
            return self._next_seq

    def new_stamp(self, *, train: bool) -> BatchStamp:
        """Of a batch that nobody stamped; one to be trained gets a number that no batch had before."""
        with self._lock:
            if train:
                _ = self.joined
                self._next_seq += 1
            return BatchStamp(worker=self._number, seq=max(0, self._next_seq - 1))

    def begin_read(self, plan: Plan, *, train: bool) -> Pending[Rows]:
        """The rows of a plan, with every update handed over so far."""
        if train:
            joined = self._joined_as(plan.stamp.worker)
        elif self._joined is not None and plan.stamp.worker == self._number:
            joined = self._joined
        else:
            return self.store.read(plan, step=self.global_step)
        return joined.read(plan, after=self._last_push, step=self.global_step, train=train)

    def read(self, plan: Plan, *, train: bool) -> Tensor:
        """The same, waited for."""
        return self.begin_read(plan, train=train).result().values

    def hand_over(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Push:
        """Pushes an update; `rule` names the push before it, which `last_push` is.

        From now on it counts as pushed: the next push names it, and the next read comes after it. If it turns out to
        have failed, `take_back` is called.
        """
        newest = max(plan.stamp.seq for plan, _ in updates)
        joined = self._joined_as(updates[0][0].stamp.worker)
        pending = joined.apply(updates, rule)
        with self._lock:
            push = Push(pending, joined, newest, rule.step, self._last_push, self.global_step)
            self._last_push = max(self._last_push, newest)
            self._next_seq = max(self._next_seq, newest + 1)
            self.global_step = rule.step + 1
        return push

    def keep(self, push: Push) -> None:
        """The store has it: it counts, even if one before it was taken back meanwhile."""
        with self._lock:
            if push.joined is self._joined:
                self._last_push = max(self._last_push, push.newest)

    def take_back(self, push: Push) -> None:
        """It failed: the next push names the one before it. Its numbers are not given to other batches."""
        with self._lock:
            if push.joined is self._joined:
                self._last_push = min(self._last_push, push.last_push)
            if self.global_step == push.step + 1:
                self.global_step = push.global_step

    @property
    def last_push(self) -> int:
        """Number of the last batch that was handed over and did not fail; -1 before the first."""
        return self._last_push

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update."""
        joined = self._joined or self._former
        if joined is not None:
            joined.discard(plan)

    def flush(self, *, timeout_seconds: float) -> None:
        """Waits until every update handed over is in the rows."""
        if self._joined is not None:
            self._joined.flush(timeout_seconds=timeout_seconds)

    def cut(self, *, timeout_seconds: float) -> Cut:
        """One exact moment of the store, with every update made so far."""
        if self._joined is None:
            return self.store.cut(timeout_seconds=timeout_seconds)
        return self._joined.cut(timeout_seconds=timeout_seconds)

    def _joined_as(self, number: int) -> Joined:
        """The incarnation that batches of this worker are trained by."""
        joined = self._joined
        if joined is None:
            return self.join(number)
        if number != joined.worker:
            raise FailedPreconditionError(
                f"Embeddings: a batch of worker {number}, but the module has joined its store as worker"
                f" {joined.worker}; call join({number}) first, or stamp its batches as worker {joined.worker}"
            )
        return joined
