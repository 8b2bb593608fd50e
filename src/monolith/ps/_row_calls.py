"""Reads and updates of rows that are on their way to servers and back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from monolith.errors import DeadlineExceededError, FailedPreconditionError, OpError
from monolith.tables.batch import NOTHING_APPLIED
from monolith.tables.local_plan import LocalRows
from monolith.tables.rows import applied_from_core

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from monolith import _core
    from monolith.ps.joined import PsJoined
    from monolith.ps.store import PsStore
    from monolith.tables.batch import Applied, Rows
    from monolith.tables.local_plan import KeptPlan
    from monolith.tables.prepared_update import PreparedUpdate

_SUBJECT = "parameter servers"


class PendingRows:
    """`monolith.tables.batch.Pending` of rows. Any thread may call it.

    Args:
        store: Whose rows they are.
        pull: The call, begun.
        values: Where the rows come.
        after: The batch whose update they must contain.
        joined: The worker that reads; None for whoever only looks.
        plan: Opened for training by this read.
    """

    def __init__(
        self,
        store: PsStore,
        pull: _core.RowPull,
        values: NDArray[np.float32],
        *,
        after: int = NOTHING_APPLIED,
        joined: PsJoined | None = None,
        plan: KeptPlan | None = None,
    ) -> None:
        self._store = store
        self._pull = pull
        self._values = values
        self._after = after
        self._joined = joined
        self._plan = plan
        self._lock = threading.Lock()
        self._rows: LocalRows | None = None
        self._error: OpError | None = None

    def done(self) -> bool:
        """Whether the answers of all servers are there."""
        return self._rows is not None or self._error is not None or self._pull.done

    def result(self, timeout_seconds: float | None = None) -> Rows:
        """The rows."""
        with self._lock:
            if self._rows is None and self._error is None:
                _wait(self._pull, timeout_seconds)
                self._finish()
            if self._error is not None:
                raise self._error
            assert self._rows is not None  # noqa: S101 - one of the two is there
            return self._rows

    def _finish(self) -> None:
        try:
            seen = self._seen()
        except OpError as error:
            self._error = error
            if self._plan is not None:
                self._store.plans.reject(self._plan)
            return
        self._rows = LocalRows(torch.from_numpy(self._values), seen if self._joined else NOTHING_APPLIED)

    def _seen(self) -> int:
        """The last batch of the worker in the rows."""
        is_lacking, seen, newest = self._pull.finish()
        if is_lacking and self._joined is not None:
            # A server had no plan for a push that it was to see first; now it gets the ids.
            self._joined.settle()
            self._pull.begin(self._store.timeout_seconds)
            is_lacking, seen, newest = self._pull.finish()
        if is_lacking:
            worker = "of its worker" if self._joined is None else f"of worker {self._joined.worker}"
            raise FailedPreconditionError(
                f"{_SUBJECT}: asked to read after batch {self._after} {worker}, but its last one applied is {seen};"
                " apply it first"
            )
        self._store.newest_time.raise_to(newest)
        return seen


class PendingPush:
    """`monolith.tables.batch.Pending` of what an update did. Any thread may ask; its worker settles it in order."""

    def __init__(
        self, joined: PsJoined, push: _core.RowPush, update: PreparedUpdate, *, on_applied: Callable[[], None]
    ) -> None:
        self._joined = joined
        self._push = push
        self._update = update
        self._on_applied = on_applied
        self._applied: Applied | None = None
        self._error: OpError | None = None

    @property
    def has_answers(self) -> bool:
        """Whether the answers of all servers are there."""
        return self.is_settled or self._push.done

    @property
    def is_settled(self) -> bool:
        """Whether it is known how it ended."""
        return self._applied is not None or self._error is not None

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error that nobody was told yet."""
        return self._error is not None

    def done(self) -> bool:
        """Whether the answers of all servers are there."""
        return self.has_answers

    def result(self, timeout_seconds: float | None = None) -> Applied:
        """What it did, once all servers have it."""
        self._joined.settle(self, timeout_seconds=timeout_seconds)
        self.raise_error()
        assert self._applied is not None  # noqa: S101 - settled without an error
        return self._applied

    def raise_error(self) -> None:
        """Raises how it failed, if it did; `flush` does not tell it once more."""
        if self._error is not None:
            self._joined.forget_failure(self)
            raise self._error

    # For its worker

    def wait(self, timeout_seconds: float | None) -> None:
        """Waits for the answers."""
        _wait(self._push, timeout_seconds)

    def settle(self, store: PsStore) -> None:
        """Takes the answers; those before it were settled."""
        try:
            applied, newest, steps_of_others = self._push.finish(store.timeout_seconds)
        except OpError as error:
            self._error = error
            return
        store.newest_time.raise_to(newest)
        store.steps_of_others = steps_of_others
        store.plans.close_applied(self._update.plans)
        self._applied = applied_from_core(applied)
        if not self._applied.duplicate:
            self._on_applied()


def _wait(call: _core.RowPull | _core.RowPush, timeout_seconds: float | None) -> None:
    """Waits for the answers, or for their own limits of time.

    Raises:
        DeadlineExceededError: they did not come in time.
    """
    if timeout_seconds is not None and not call.wait_for(timeout_seconds):
        raise DeadlineExceededError(f"{_SUBJECT}: no answer within {timeout_seconds:g} s; it is still awaited")
