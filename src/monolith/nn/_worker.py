"""A module as a worker at its store: which one it is, which batches it has pushed, and which step comes next."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError
from monolith.forks import at_rest_in_forks
from monolith.tables.batch import NOTHING_APPLIED, BatchStamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.tables.batch import Applied, Plan, Update
    from monolith.tables.history import Cut
    from monolith.tables.store import Joined, Store


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
            self._next_seq = max(self._next_seq, joined.next_seq)
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
        """Every number of a batch from this one on is free, of this worker or of the one it is."""
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

    def read(self, plan: Plan, *, train: bool) -> Tensor:
        """The rows of a plan, with every update made so far."""
        if train:
            joined = self._joined_as(plan.stamp.worker)
        elif self._joined is not None and plan.stamp.worker == self._number:
            joined = self._joined
        else:
            return self.store.read(plan, step=self.global_step).result().values
        return joined.read(plan, after=self._last_push, step=self.global_step, train=train).result().values

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Applied:
        """Pushes an update; `rule` names the push before it, which `last_push` is."""
        newest = max(plan.stamp.seq for plan, _ in updates)
        applied = self._joined_as(updates[0][0].stamp.worker).apply(updates, rule).result()
        with self._lock:
            self._last_push = max(self._last_push, newest)
            self._next_seq = max(self._next_seq, newest + 1)
            self.global_step = rule.step + 1
        return applied

    @property
    def last_push(self) -> int:
        """Number of the last batch that was pushed; -1 before the first."""
        return self._last_push

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update."""
        joined = self._joined or self._former
        if joined is not None:
            joined.discard(plan)

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
