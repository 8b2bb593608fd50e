"""Updates of one or more plans: merged to one step per id, checked and made into one call of the core.

The plan of all has the occurrences of all, which admission needs. Gradients are added in the order of the plans.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from monolith import _core
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.arrays import finite_scale, float_array, new_rows
from monolith.tables.batch import BatchStamp
from monolith.tables.local.plan import tables_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import Update
    from monolith.tables.local.native_tables import NativeTables
    from monolith.tables.local.plan import LocalPlan


_seq_of = operator.attrgetter("seq")


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
    if not plans or len({id(plan) for plan in plans}) != len(plans):
        raise InvalidArgumentError(f"{subject}: apply takes one or more plans, each once; got {len(plans)}")
    arrays = [
        float_array(gradient, (plan.num_values,), subject, "gradient")
        for plan, gradient in zip(plans, gradients, strict=True)
    ]
    merged = merge_updates(native, plans, arrays, times, _latest_of(native, plans, rule, subject))
    rates = float_array(rule.learning_rates, (native.rate_splits[-1],), subject, "learning_rates")
    is_known_finite = rule.known_finite and len(plans) == 1
    stamps = [plan.stamp for plan in plans]
    push = max(stamps, key=_seq_of), min(stamps, key=_seq_of).seq, rule.previous, incarnation
    return PreparedUpdate(plans, *push, *merged, rates, rule.step, finite_scale(rule.scale, subject), is_known_finite)


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


def _latest_of(
    native: NativeTables, plans: Sequence[LocalPlan], rule: Update, subject: str
) -> list[NDArray[np.float32]] | None:
    if rule.latest is None:
        return None
    if len(rule.latest) != len(plans):
        raise InvalidArgumentError(
            f"{subject}: latest must have one tensor per plan ({len(plans)}), got {len(rule.latest)}"
        )
    if not any(native.uses_latest):
        return None
    return [
        spread_latest(native, plan.core, float_array(latest, (_num_latest(native, plan.core),), subject, "latest"))
        for plan, latest in zip(plans, rule.latest, strict=True)
    ]


class Contribution(Protocol):
    """A plan whose occurrences are merged, such as `LocalPlan`."""

    core: _core.Plan


def merge_updates(
    native: NativeTables,
    plans: Sequence[Contribution],
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
