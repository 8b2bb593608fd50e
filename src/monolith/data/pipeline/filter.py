"""`Dataset.filter`: some of the elements, or some of the rows of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch import Tensor

from monolith.data.rows import has_rows, num_rows_of, select_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

T = TypeVar("T")

__all__ = ["RowFilter"]


class RowFilter:
    """A function for `Map` that keeps the rows selected by a predicate.

    Args:
        predicate: Called with each element. True or False keeps or drops it; a bool tensor or array [rows] of a `Batch`
            or of `Records` keeps those rows.
    """

    def __init__(self, predicate: Callable[[Any], Any]) -> None:
        if not callable(predicate):
            raise TypeError(f"filter: expected a function, got {predicate!r}")
        self._predicate = predicate

    def __repr__(self) -> str:
        return f"filter({getattr(self._predicate, '__name__', self._predicate)})"

    def __call__(self, element: T) -> T | None:
        """Returns the element, its rows that are kept, or None."""
        kept = self._predicate(element)
        if isinstance(kept, Tensor):
            kept = kept.numpy(force=True)
        if not isinstance(kept, np.ndarray) or kept.ndim == 0:
            return element if kept else None
        rows = _row_numbers(kept, element)
        if len(rows) == len(kept):
            return element
        chosen: T | None = select_rows(element, rows) if len(rows) else None
        return chosen


def _row_numbers(mask: npt.NDArray[Any], element: object) -> npt.NDArray[np.int64]:
    if not has_rows(element):
        raise TypeError(f"filter: a mask of rows is for Batch and Records, got a mask for a {type(element).__name__}")
    if mask.dtype != np.bool_ or mask.shape != (num_rows_of(element),):
        raise ValueError(
            f"filter: expected a bool mask of shape [{num_rows_of(element)}], got {mask.dtype} {list(mask.shape)}"
        )
    return np.flatnonzero(mask)
