"""What the calls of tables return beside plain arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from monolith.tables._arrays import tensor_view
from monolith.tables.store import Applied

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from monolith import _core

__all__ = ["Applied", "FoundRows", "TablePlan"]


class FoundRows(NamedTuple):
    """Everything a table knows of some ids; torch or NumPy like the ids. Absent ids have zeros everywhere."""

    found: Any
    """bool, shape of ids."""
    weights: Any
    """float32, shape of ids + [dim]: the stored weights, before any quantiser."""
    state: Any
    """uint8, shape of ids + [state bytes]: optimizer state, segments end to end."""
    time: Any
    """int64, shape of ids: Unix seconds of the last update."""


class TablePlan:
    """The distinct ids of one batch, made by `HashTable.plan` or `TableGroup.plan` and used by `read` and `apply`.

    A pure function of the ids: it holds no rows, stays valid whatever happens to the tables, and may be made in another
    thread.
    """

    __slots__ = ("core", "like")

    def __init__(self, core: _core.Plan, like: object) -> None:
        self.core = core
        self.like = like

    @property
    def unique_ids(self) -> Any:
        """int64 [U]: by bucket, then table, then first seen."""
        return self._hand_back(self.core.unique_ids)

    @property
    def inverse(self) -> Any:
        """int32 [n]: input position -> position in `unique_ids`."""
        return self._hand_back(self.core.inverse)

    @property
    def counts(self) -> Any:
        """int32 [U]: occurrences in the batch."""
        return self._hand_back(self.core.counts)

    @property
    def splits(self) -> Any:
        """int64 [buckets * tables + 1]: where each (bucket, table) starts in `unique_ids`."""
        return self._hand_back(self.core.splits)

    def __len__(self) -> int:
        return self.core.num_unique

    def _hand_back(self, array: NDArray[Any]) -> Any:
        return array if isinstance(self.like, np.ndarray) else tensor_view(array)


def applied_from_core(applied: _core.Applied) -> Applied:
    """The counts of an update as a plain value."""
    return Applied(
        updated=applied.updated, inserted=applied.inserted, filtered=applied.filtered, skipped=applied.skipped
    )
