"""Results of table calls other than plain arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.tables.batch import Applied

if TYPE_CHECKING:
    from monolith import _core


class FoundRows(NamedTuple):
    """Everything a table stores for some ids; torch or NumPy like the ids. Absent ids have zeros everywhere."""

    found: Any
    """bool, shape of ids."""
    weights: Any
    """float32, shape of ids + [dim]: the stored weights, before any quantiser."""
    state: Any
    """uint8, shape of ids + [state bytes]: optimizer state, segments end to end."""
    time: Any
    """int64, shape of ids: Unix seconds of the last update."""


def applied_from_core(applied: _core.Applied) -> Applied:
    """Returns the counts of an update as a plain value."""
    return Applied(
        updated=applied.updated,
        inserted=applied.inserted,
        filtered=applied.filtered,
        skipped=applied.skipped,
        duplicate=applied.duplicate,
    )
