"""A batch in an engine of the core: its plan, how stores and sessions make it, and the rows that were read for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.forks import fork_safe
from monolith.tables.arrays import bucket_array, id_array, tensor_view
from monolith.tables.batch import BatchStamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith import _core
    from monolith.tables.batch import Plan
    from monolith.tables.local.native_tables import NativeTables
    from monolith.tables.schema import Schema

PlanT = TypeVar("PlanT", bound="LocalPlan")

NO_BATCH = BatchStamp(worker=0, seq=0)
"""The stamp of plans of which no worker makes a push, such as those of a `HashTable`."""
NO_TICKET = 0
"""Ticket of a plan that no owner keeps."""


class LocalPlan:
    """The distinct ids of a batch, and the status of the batch.

    A pure function of the ids: it holds no rows, stays valid whatever happens to the tables, and may be made in another
    thread. Its tensors are views of the core's arrays; they are NumPy arrays where it was made of some.
    """

    __slots__ = ("_num_tables", "core", "like", "num_values", "owner", "stamp", "status", "table_splits")

    def __init__(
        self,
        native: NativeTables,
        core: _core.Plan,
        table_splits: NDArray[np.int64],
        stamp: BatchStamp = NO_BATCH,
        like: object = None,
    ) -> None:
        self.owner = native.identity
        """Identity of the tables that it was made for; keeps none of them alive."""
        self.core = core
        self.num_values = native.core.num_values(core)
        """Length of the flat rows and gradients."""
        self._num_tables = len(native.names)
        self.table_splits = table_splits
        self.stamp = stamp
        self.like = like
        """The ids in the kind they were given; results are of that kind."""
        self.status = "new"
        """new, open (read for training), applied or discarded; changed by `OpenPlans` alone."""

    @property
    def unique_ids(self) -> Any:
        """int64 [U]: by bucket, then table, then first seen."""
        return self._hand_back(self.core.unique_ids)

    @property
    def splits(self) -> Any:
        """int64 [buckets * T + 1]: where each (bucket, table) starts in `unique_ids`."""
        return self._hand_back(self.core.splits)

    @property
    def inverse(self) -> Any:
        """int32 [n]: input position -> position in `unique_ids`."""
        return self._hand_back(self.core.inverse)

    @property
    def counts(self) -> Any:
        """int32 [U]: occurrences in the batch."""
        return self._hand_back(self.core.counts)

    @property
    def tables(self) -> Any:
        """int64 [U]: the table of each unique id."""
        return self._hand_back(tables_of(self.core.splits, self._num_tables))

    def __len__(self) -> int:
        return self.core.num_unique

    def _hand_back(self, array: NDArray[Any]) -> Any:
        return array if isinstance(self.like, np.ndarray) else tensor_view(array)


class RemotePlan(LocalPlan):
    """A plan that owners in other processes keep their part of until the update."""

    ticket = NO_TICKET
    """The number under which they keep it."""


def tables_of(splits: NDArray[np.int64], num_tables: int) -> NDArray[np.int64]:
    """Returns int64 [U]: the table of each unique id of a plan with these splits."""
    sizes = np.diff(splits)
    return np.repeat(np.tile(np.arange(num_tables), len(sizes) // num_tables), sizes)


class NativeStore(Generic[PlanT]):
    """The part that stores over `NativeTables` share: their schema and their plans."""

    subject: ClassVar[str]
    """The store in messages."""
    plan_kind: type[PlanT]
    native: NativeTables

    @property
    def schema(self) -> Schema:
        """Schema of the rows."""
        return self.native.schema

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> PlanT:
        """Groups the ids of one batch of all tables; touches no row, takes no lock and calls no other process.

        Raises:
            InvalidArgumentError: something does not fit.
        """
        native, subject = self.native, self.subject
        flat = id_array(ids, subject).reshape(-1)
        splits = id_array(table_splits, subject, "table_splits")
        if splits.shape != (len(native.names) + 1,):
            raise InvalidArgumentError(
                f"{subject}: table_splits must have shape ({len(native.names) + 1},), got {splits.shape}"
            )
        core = native.core.plan(flat, splits, True, bucket_array(buckets, len(flat), subject))
        return self.plan_kind(native, core, splits.copy(), stamp)

    def own(self, plan: Plan) -> PlanT:
        """Returns the plan, if this store made it.

        Raises:
            InvalidArgumentError: another store made it.
        """
        if not isinstance(plan, self.plan_kind) or plan.owner is not self.native.identity:
            raise InvalidArgumentError(
                f"{self.subject}: plan must come from this store's plan(), got {type(plan).__name__}"
            )
        return plan


class NativeSession(Generic[PlanT]):
    """The part that the sessions of a worker at such stores share: they take the plans of this worker alone."""

    worker: int
    _store: NativeStore[PlanT]

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> PlanT:
        """Groups the ids of one batch of this worker."""
        self._require_own(stamp)
        return self._store.plan(ids, table_splits, stamp=stamp, buckets=buckets)

    def _own(self, plan: Plan) -> PlanT:
        own = self._store.own(plan)
        self._require_own(own.stamp, "plan of ")
        return own

    def _require_own(self, stamp: BatchStamp, what: str = "") -> None:
        if stamp.worker != self.worker:
            raise InvalidArgumentError(
                f"{self._store.subject}: {what}{stamp} is of another worker than the one joined, {self.worker}"
            )


class OpenPlans:
    """The status of a store's plans: each training plan ends in exactly one update or is discarded."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._lock = fork_safe(threading.Lock())
        self.count = 0
        """Plans that were read for training and have not ended."""

    def open(self, plan: LocalPlan) -> None:
        """Opens a plan that was read for training."""
        with self._lock:
            if plan.status in {"applied", "discarded"}:
                raise FailedPreconditionError(
                    f"{self._subject}: plan of {plan.stamp} was {plan.status} already; make a new one"
                )
            self.count += plan.status == "new"
            plan.status = "open"

    def close_applied(self, plans: Sequence[LocalPlan]) -> None:
        """Ends plans whose update the store has applied."""
        with self._lock:
            for plan in plans:
                self._close(plan, "applied")

    def discard(self, plan: LocalPlan) -> None:
        """Ends a plan without an update."""
        with self._lock:
            if plan.status in {"applied", "discarded"}:
                raise FailedPreconditionError(f"{self._subject}: plan of {plan.stamp} was {plan.status} already")
            self._close(plan, "discarded")

    def reject(self, plan: LocalPlan) -> None:
        """Resets a plan whose opening read has failed."""
        with self._lock:
            self.count -= plan.status == "open"
            plan.status = "new"

    def _close(self, plan: LocalPlan, status: str) -> None:
        self.count -= plan.status == "open"
        plan.status = status


class LocalRows:
    """Rows that were read, and the last batch of their worker in them."""

    __slots__ = ("seen", "values")

    def __init__(self, values: Tensor, seen: int) -> None:
        self.values = values
        self.seen = seen
