"""Memory for the results of a batch, taken from earlier batches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from monolith import _core

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RECYCLED_FLOATS = 2**14
"""From this size on results lie in memory that the core keeps for the next batch."""


def new_rows(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns float32 of this shape, uninitialised.

    A large batch takes the memory of an earlier one: fresh pages from the system would have to be cleared, which costs
    as much as reading the rows.
    """
    count = math.prod(shape)
    if count < _RECYCLED_FLOATS:
        return np.empty(shape, np.float32)
    return _core.new_floats(count).reshape(shape)
