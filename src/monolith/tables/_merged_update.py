"""Several plans made into one, so that accumulated gradients become a single optimizer step per id.

Planning the inputs of all plans once more keeps the occurrence counts right, which admission needs. Gradients are added
in the order of the plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from monolith.errors import InvalidArgumentError
from monolith.tables.local_plan import tables_of
from monolith.tables.slot_keys import buckets_of_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monolith import _core
    from monolith.tables._native_tables import NativeTables


class Contribution(Protocol):
    """One plan with the table_splits it was made of."""

    core: _core.Plan
    table_splits: NDArray[np.int64]


class MergedUpdate(NamedTuple):
    """What one native `apply` takes."""

    plan: _core.Plan
    gradient: NDArray[np.float32]
    times: NDArray[np.int64]
    latest: NDArray[np.float32] | None
    """The rows as the worker saw them, laid out as the gradient; those of tables that do not use them are zeros."""


class _Layout(NamedTuple):
    """Where the values of each unique id lie."""

    tables: NDArray[np.int64]
    offsets: NDArray[np.int64]


def merge_updates(
    native: NativeTables,
    plans: Sequence[Contribution],
    gradients: Sequence[NDArray[np.float32]],
    times: NDArray[np.int64],
    latest: Sequence[NDArray[np.float32]] | None,
) -> MergedUpdate:
    """One plan and one flat gradient for all.

    ``times`` has one entry, or one per input of all plans end to end. Of the latest rows of an id that several plans
    have, the first ones count: its gradient was computed from rows at least as new.
    """
    if len(plans) == 1:
        return MergedUpdate(plans[0].core, gradients[0], times, None if latest is None else latest[0])
    sizes = np.array([np.diff(plan.table_splits) for plan in plans])
    splits = np.concatenate([[0], np.cumsum(sizes.sum(axis=0))])
    starts = splits[:-1] + np.cumsum(sizes, axis=0) - sizes  # [plan, table]: where its ids go
    flat = np.empty(splits[-1], np.int64)
    buckets = np.empty(splits[-1], np.uint16) if any(plan.core.has_buckets for plan in plans) else None
    places = []
    for plan, plan_starts, plan_sizes in zip(plans, starts, sizes, strict=True):
        shift = np.repeat(plan_starts - plan.table_splits[:-1], plan_sizes)
        places.append(np.arange(len(shift)) + shift)
        flat[places[-1]] = plan.core.unique_ids[plan.core.inverse]
        if buckets is not None:
            buckets[places[-1]] = buckets_of_plan(plan.core.splits, len(native))[plan.core.inverse]
    merged = native.core.plan(flat, splits, True, buckets)
    with np.errstate(over="ignore", invalid="ignore"):  # who applies the sum decides about what is not finite
        gradient = _combine(native, merged, plans, gradients, places, add=True)
    first = None if latest is None else _combine(native, merged, plans, latest, places, add=False)
    if len(times) != 1:
        reordered = np.empty(len(flat), np.int64)
        reordered[np.concatenate(places)] = times
        times = reordered
    return MergedUpdate(merged, gradient, times, first)


def require_finite(native: NativeTables, update: MergedUpdate, scale: float) -> None:
    """Refuses, as the core's `apply` does, gradients that tables with ``nonfinite="raise"`` cannot take.

    Raises:
        InvalidArgumentError: names the table and the id.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(update.gradient if scale == 1.0 else update.gradient * np.float32(scale))
    if finite.all():
        return
    tables, offsets = _layout(native, update.plan)
    for place in np.unique(np.searchsorted(offsets, np.flatnonzero(~finite), side="right") - 1):
        config = native.configs[tables[place]]
        if config.nonfinite == "raise":
            raise InvalidArgumentError(
                f"table {config.name!r}: the gradient of id {update.plan.unique_ids[place]} is not finite; nothing was"
                " applied. Set nonfinite='skip' or 'apply' in the table's config to go on"
            )


def spread_latest(native: NativeTables, plan: _core.Plan, latest: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows of tables that use them, laid out as the gradient of all tables."""
    if all(native.uses_latest):
        return latest
    tables = tables_of(plan.splits, len(native))
    used = np.repeat(np.array(native.uses_latest)[tables], np.array(native.dims)[tables])
    spread = np.zeros(len(used), np.float32)
    spread[used] = latest
    return spread


def require_latest_of_all(latest: Sequence[object], num_plans: int, subject: str) -> None:
    """Refuses latest rows that do not go with the plans.

    Raises:
        InvalidArgumentError: there are more or fewer of them.
    """
    if len(latest) != num_plans:
        raise InvalidArgumentError(f"{subject}: latest must have one tensor per plan ({num_plans}), got {len(latest)}")


def num_latest(native: NativeTables, plan: _core.Plan) -> int:
    """How many floats the rows of tables that use them have."""
    sizes = np.diff(plan.splits).reshape(-1, len(native)).sum(axis=0)
    return int((sizes * np.array(native.dims) * np.array(native.uses_latest)).sum())


def _combine(
    native: NativeTables,
    merged: _core.Plan,
    plans: Sequence[Contribution],
    gradients: Sequence[NDArray[np.float32]],
    places: Sequence[NDArray[np.int64]],
    *,
    add: bool,
) -> NDArray[np.float32]:
    """Values of several plans in the layout of the merged one: their sum, or those of the first plan with the id."""
    total = np.zeros(native.core.num_values(merged), np.float32)
    is_first = np.ones(merged.num_unique, np.bool_)
    target = _layout(native, merged)
    for plan, gradient, place in zip(plans, gradients, places, strict=True):
        unique = np.empty(plan.core.num_unique, np.int64)  # place in this plan -> place in the merged one
        unique[plan.core.inverse] = merged.inverse[place]
        source = _layout(native, plan.core)
        for table in range(len(native)):
            mine = source.tables == table
            within = np.arange(native.dims[table])
            to = target.offsets[unique[mine]][:, None] + within
            values = gradient[source.offsets[mine][:, None] + within]
            # The first gradient is copied: adding it to 0 would turn -0 into 0.
            later = total[to] + values if add else total[to]
            total[to] = np.where(is_first[unique[mine]][:, None], values, later)
        is_first[unique] = False
    return total


def _layout(native: NativeTables, plan: _core.Plan) -> _Layout:
    tables = tables_of(plan.splits, len(native))
    dims = np.array(native.dims)[tables]
    return _Layout(tables, np.cumsum(dims) - dims)
