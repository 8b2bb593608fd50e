"""A batch in an engine of the core: its plan, how stores and sessions make it, the rows that were read, the update.

Updates of one or more plans are merged to one step per id, checked and made into one call of the core. The plan of all
has the occurrences of all, which admission needs. Gradients are added in the order of the plans.
"""

from __future__ import annotations

import operator
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from monolith import _core
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.forks import fork_safe
from monolith.tables.arrays import bucket_array, finite_scale, float_array, id_array, new_rows, tensor_view
from monolith.tables.batch import BatchStamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import Plan, Update
    from monolith.tables.local.native_tables import NativeTables
    from monolith.tables.schema import Schema

PlanT = TypeVar("PlanT", bound="LocalPlan")

NO_BATCH = BatchStamp(worker=0, seq=0)
"""The stamp of plans of which no worker makes a push, such as those of a `HashTable`."""
NO_TICKET = 0
"""Ticket of a plan that no owner keeps."""
_seq_of = operator.attrgetter("seq")


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
        core, splits = self.plan_by_core(ids, table_splits, buckets)
        return self.plan_kind(self.native, core, splits, stamp)

    def plan_by_core(
        self, ids: Tensor, table_splits: Tensor, buckets: Tensor | None
    ) -> tuple[_core.Plan, NDArray[np.int64]]:
        """Returns the core's plan of the ids, and a copy of the table splits."""
        native, subject = self.native, self.subject
        flat = id_array(ids, subject).reshape(-1)
        splits = id_array(table_splits, subject, "table_splits")
        if splits.shape != (len(native.names) + 1,):
            raise InvalidArgumentError(
                f"{subject}: table_splits must have shape ({len(native.names) + 1},), got {splits.shape}"
            )
        return native.core.plan(flat, splits, True, bucket_array(buckets, len(flat), subject)), splits.copy()

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


class PreparedUpdate(NamedTuple):
    """An update that was checked and merged: the arguments of one call of the core."""

    plans: Sequence[LocalPlan]
    stamp: BatchStamp
    """Stamp of the newest batch."""
    first_seq: int
    """Number of the oldest batch."""
    previous: int
    """Number of the worker's push before this one."""
    incarnation: int
    plan: _core.Plan
    """The plan of all ids."""
    gradient: NDArray[np.float32]
    times: NDArray[np.int64]
    latest: NDArray[np.float32] | None
    """The rows as the worker saw them, laid out as the gradient; those of tables that do not use them are zeros."""
    rates: NDArray[np.float32]
    step: int
    scale: float
    is_known_finite: bool
    """Whether the check for NaN and infinity can be skipped; sums of finite gradients may be infinite."""

    @property
    def push(self) -> _core.Push:
        """Position of the update among those of its worker."""
        return push_to_core(self.stamp, self.incarnation, self.first_seq, self.previous)


def prepare_update(
    native: NativeTables,
    plans: Sequence[LocalPlan],
    gradients: Sequence[Tensor],
    rule: Update,
    times: NDArray[np.int64],
    *,
    incarnation: int,
    subject: str,
) -> PreparedUpdate:
    """Does everything of an update except the call itself, with these times instead of those of the rule.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """
    require_each_once(plans, subject)
    arrays = [
        float_array(gradient, (plan.num_values,), subject, "gradient")
        for plan, gradient in zip(plans, gradients, strict=True)
    ]
    merged = merge_updates(native, plans, arrays, times, latest_of(native, plans, rule, subject))
    rates = float_array(rule.learning_rates, (native.rate_splits[-1],), subject, "learning_rates")
    is_known_finite = rule.known_finite and len(plans) == 1
    push = *newest_and_first(plans), rule.previous, incarnation
    return PreparedUpdate(plans, *push, *merged, rates, rule.step, finite_scale(rule.scale, subject), is_known_finite)


def require_each_once(plans: Sequence[LocalPlan], subject: str) -> None:
    """Rejects an update without plans, or with one of them twice."""
    if not plans or len({id(plan) for plan in plans}) != len(plans):
        raise InvalidArgumentError(f"{subject}: apply takes one or more plans, each once; got {len(plans)}")


def newest_and_first(plans: Sequence[LocalPlan]) -> tuple[BatchStamp, int]:
    """Returns the stamp of the newest of some batches, and the number of the oldest one."""
    stamps = [plan.stamp for plan in plans]
    return max(stamps, key=_seq_of), min(stamps, key=_seq_of).seq


def require_not_discarded(plans: Sequence[LocalPlan], subject: str) -> None:
    """Rejects plans that have ended without an update."""
    for plan in plans:
        if plan.status == "discarded":
            raise FailedPreconditionError(f"{subject}: plan of {plan.stamp} was discarded; make a new one")


def push_to_core(stamp: BatchStamp, incarnation: int, first_seq: int, previous: int) -> _core.Push:
    """Returns the position of an update among those of its worker, as the core takes it."""
    return _core.Push(
        worker=stamp.worker,
        incarnation=incarnation,
        first_seq=first_seq,
        seq=stamp.seq,
        previous=previous,
        position=stamp.position,
        event_time_ms=stamp.event_time_ms,
    )


def stamp_from_core(stamp: _core.BatchStamp) -> BatchStamp:
    """Returns a stamp of the core as a plain value."""
    return BatchStamp(worker=stamp.worker, seq=stamp.seq, position=stamp.position, event_time_ms=stamp.event_time_ms)


def stamp_to_core(stamp: BatchStamp) -> _core.BatchStamp:
    """Returns a stamp as the core takes it."""
    return _core.BatchStamp(stamp.worker, stamp.seq, stamp.position, stamp.event_time_ms)


def latest_of(
    native: NativeTables, plans: Sequence[LocalPlan], rule: Update, subject: str
) -> list[NDArray[np.float32]] | None:
    """Returns the rows as the worker saw them, of each plan, laid out as its gradient; None if no table uses them."""
    if rule.latest is None:
        return None
    if len(rule.latest) != len(plans):
        raise InvalidArgumentError(
            f"{subject}: latest must have one tensor per plan ({len(plans)}), got {len(rule.latest)}"
        )
    if not any(native.uses_latest):
        return None
    return [
        spread_latest(
            native, plan.core, float_array(latest.cpu(), (_num_latest(native, plan.core),), subject, "latest")
        )
        for plan, latest in zip(plans, rule.latest, strict=True)
    ]


def merge_updates(
    native: NativeTables,
    plans: Sequence[LocalPlan],
    gradients: Sequence[NDArray[np.float32]],
    times: NDArray[np.int64],
    latest: Sequence[NDArray[np.float32]] | None,
) -> tuple[_core.Plan, NDArray[np.float32], NDArray[np.int64], NDArray[np.float32] | None]:
    """Merges plans and gradients to one plan and one flat gradient; returns them with their times and latest rows.

    ``times`` has one entry, or one per input of all plans end to end. Of the latest rows of an id that several plans
    have, the first ones count: its gradient was computed from rows at least as new.
    """
    if len(plans) == 1:
        return plans[0].core, gradients[0], times, None if latest is None else latest[0]
    merged = native.core.merge_plans([plan.core for plan in plans])
    gradient = new_rows((native.core.num_values(merged.plan),))
    merged.sum_rows(gradients, gradient)  # the caller that applies the sum handles values that are not finite
    first = None
    if latest is not None:
        first = new_rows(gradient.shape)
        merged.first_rows(latest, first)
    if len(times) != 1:
        times = merged.times_of_inputs(np.split(times, np.cumsum([plan.core.num_ids for plan in plans[:-1]])))
    return merged.plan, gradient, times, first


def require_finite(native: NativeTables, plan: _core.Plan, gradient: NDArray[np.float32], scale: float) -> None:
    """Rejects, like the core's `apply`, gradients that tables with ``nonfinite="raise"`` cannot take.

    Raises:
        InvalidArgumentError: names the table and the id.
    """
    if _core.are_finite(gradient, scale):
        return
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(gradient * np.float32(scale))
    tables = tables_of(plan.splits, len(native))
    dims = np.array(native.dims)[tables]
    offsets = np.cumsum(dims) - dims
    for place in np.unique(np.searchsorted(offsets, np.flatnonzero(~finite), side="right") - 1):
        config = native.configs[tables[place]]
        if config.nonfinite == "raise":
            raise InvalidArgumentError(
                f"table {config.name!r}: the gradient of id {plan.unique_ids[place]} is not finite; nothing was"
                " applied. Set nonfinite='skip' or 'apply' in the table's config to continue"
            )


def spread_latest(native: NativeTables, plan: _core.Plan, latest: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the rows of tables that use them, laid out as the gradient of all tables."""
    if all(native.uses_latest):
        return latest
    tables = tables_of(plan.splits, len(native))
    used = np.repeat(np.array(native.uses_latest)[tables], np.array(native.dims)[tables])
    spread = np.zeros(len(used), np.float32)
    spread[used] = latest
    return spread


def _num_latest(native: NativeTables, plan: _core.Plan) -> int:
    """Returns the number of floats in the rows of tables that use latest rows."""
    sizes = np.diff(plan.splits).reshape(-1, len(native)).sum(axis=0)
    return int((sizes * np.array(native.dims) * np.array(native.uses_latest)).sum())
