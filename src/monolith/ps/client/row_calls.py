"""Reads and updates of rows in flight to servers, and the read of a single row for debugging."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from monolith.errors import DeadlineExceededError, FailedPreconditionError, OpError
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import NOTHING_APPLIED, Applied, made_from
from monolith.tables.local import LocalRows

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from monolith import _core
    from monolith.ps.client.cluster import PsCluster
    from monolith.ps.client.joined import PsWorkerSession
    from monolith.ps.client.store import PsStore
    from monolith.tables import Rows
    from monolith.tables.local import PreparedUpdate, RemotePlan

_SUBJECT = "parameter servers"


class PendingRows:
    """`monolith.tables.batch.Pending` of rows. Thread-safe.

    Args:
        store: Store of the rows.
        pull: The call, begun.
        values: Memory for the rows.
        after: The batch whose update they must contain.
        session: The worker that reads; None for a read without a worker.
        plan: Plan opened for training by this read.
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
