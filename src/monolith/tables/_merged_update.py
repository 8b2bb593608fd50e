"""Several plans made into one, so that accumulated gradients become a single optimizer step per id.

Planning the inputs of all plans once more keeps the occurrence counts right, which admission needs. Gradients are added
in the order of the plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from monolith.errors import InvalidArgumentError

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


class _Layout(NamedTuple):
    """Where the values of each unique id lie."""

    tables: NDArray[np.int64]
    offsets: NDArray[np.int64]


def merge_updates(
    native: NativeTables,
    plans: Sequence[Contribution],
    gradients: Sequence[NDArray[np.float32]],
    times: NDArray[np.int64],
) -> MergedUpdate:
    """One plan and one flat gradient for all; ``times`` has one entry, or one per input of all plans end to end."""
    sizes = np.array([np.diff(plan.table_splits) for plan in plans])
    splits = np.concatenate([[0], np.cumsum(sizes.sum(axis=0))])
    starts = splits[:-1] + np.cumsum(sizes, axis=0) - sizes  # [plan, table]: where its ids go
    flat = np.empty(splits[-1], np.int64)
    places = []
    for plan, plan_starts, plan_sizes in zip(plans, starts, sizes, strict=True):
        shift = np.repeat(plan_starts - plan.table_splits[:-1], plan_sizes)
        places.append(np.arange(len(shift)) + shift)
        flat[places[-1]] = plan.core.unique_ids[plan.core.inverse]
    merged = native.core.plan(flat, splits, True)
    with np.errstate(over="ignore", invalid="ignore"):  # who applies the sum decides about what is not finite
        gradient = _sum(native, merged, plans, gradients, places)
    if len(times) != 1:
        reordered = np.empty(len(flat), np.int64)
        reordered[np.concatenate(places)] = times
        times = reordered
    return MergedUpdate(merged, gradient, times)


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


def _sum(
    native: NativeTables,
    merged: _core.Plan,
    plans: Sequence[Contribution],
    gradients: Sequence[NDArray[np.float32]],
    places: Sequence[NDArray[np.int64]],
) -> NDArray[np.float32]:
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
            total[to] = np.where(is_first[unique[mine]][:, None], values, total[to] + values)
        is_first[unique] = False
    return total


def _layout(native: NativeTables, plan: _core.Plan) -> _Layout:
    per_cell = np.diff(plan.splits)
    tables = np.repeat(np.tile(np.arange(len(native)), len(per_cell) // len(native)), per_cell)
    dims = np.array(native.dims)[tables]
    return _Layout(tables, np.cumsum(dims) - dims)
