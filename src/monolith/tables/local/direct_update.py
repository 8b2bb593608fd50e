"""An update without worker and stamp: what `HashTable` and `TableGroup` make of a call that learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from monolith.tables.rows import applied_from_core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from monolith import _core
    from monolith.tables.batch import Applied
    from monolith.tables.local.native_tables import NativeTables

PER_ID, PER_UNIQUE_ID = 0, 1
"""Layout of gradients: one row for each input id, or one for each distinct id in plan order."""

Pooled: TypeAlias = "tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]"
"""The row of each id in gradients that several ids share, and its factor; None: row i for id i, times 1."""


class DirectUpdate(NamedTuple):
    """One optimizer step, with arrays as the core takes them."""

    gradients: NDArray[np.float32]
    layout: int
    rates: NDArray[np.float32]
    step: int | None
    """None: 0 for optimizers; admission counts the offers of an id."""
    times: NDArray[np.int64]
    """Times as the caller gave them."""
    pooled: Pooled = (None, None)
    scale: float = 1.0
    latest: NDArray[np.float32] | None = None


def apply_directly(native: NativeTables, plan: _core.Plan, update: DirectUpdate) -> Applied:
    """Makes the step."""
    bounded = native.event_clock.bounded(update.times)
    applied = native.core.apply(
        plan,
        update.gradients,
        update.layout,
        *update.pooled,
        update.rates,
        update.step or 0,
        bounded.times,
        update.scale,
        update.latest,
        has_step=update.step is not None,
    )
    native.event_clock.count(bounded)
    return applied_from_core(applied)
