"""Ragged batches pooled per example: which ids count, and which gradient row each of them learns from.

Dims: B examples, n ids, D dim of a row, N of first-n::

    ids        [ 7 3 | | 9 9 4 ]          row_splits [0, 2, 2, 5]
    sum, mean  [B, D]                     sqrtn: the sum / √n, n ids of an example
    first_n    [B, N, D]                  example 0 with N = 3: rows of 7, 3, then zeros
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from monolith.errors import InvalidArgumentError
from monolith.tables.arrays import id_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from monolith.tables.arrays import Ids

Combiner: TypeAlias = "Literal['sum', 'mean', 'sqrtn'] | tuple[Literal['first_n'], int]"
"""How the rows of one example become one result."""

SUM, MEAN, FIRST_N, SQRT_N = 0, 1, 2, 3
"""Numbers of the core."""


class Pooling(NamedTuple):
    """A combiner as the core takes it."""

    mode: int
    first_n: int

    def shape(self, batch: int, dim: int) -> tuple[int, ...]:
        """Returns the shape of the result and of its gradient."""
        return (batch, self.first_n, dim) if self.mode == FIRST_N else (batch, dim)


class GradientRows(NamedTuple):
    """The gradient of each id."""

    kept: NDArray[np.bool_] | None
    """Ids that contribute; None: all."""
    rows: NDArray[np.int32]
    """For each contributing id: its row of the flat gradient."""
    scales: NDArray[np.float32] | None
    """Factor of that row; None: 1."""


def parse_combiner(combiner: Combiner, subject: str) -> Pooling:
    """Checks a combiner and returns it as the core takes it."""
    if combiner == "sum":
        return Pooling(SUM, 0)
    if combiner == "mean":
        return Pooling(MEAN, 0)
    if combiner == "sqrtn":
        return Pooling(SQRT_N, 0)
    match combiner:
        case ("first_n", int(length)) if length > 0:
            return Pooling(FIRST_N, length)
        case ("first_n", length):
            raise InvalidArgumentError(f"{subject}: first_n needs a length > 0, got {length!r}")
    raise InvalidArgumentError(
        f"{subject}: combiner must be 'sum', 'mean', 'sqrtn' or ('first_n', n), got {combiner!r}"
    )


def split_array(row_splits: Ids, num_ids: int, subject: str) -> NDArray[np.int64]:
    """Returns int64 [B + 1], rising from 0 to the number of ids."""
    splits = id_array(row_splits, subject, "row_splits")
    if splits.ndim != 1 or len(splits) == 0:
        raise InvalidArgumentError(f"{subject}: row_splits must have shape (batch + 1,), got {splits.shape}")
    if splits[0] != 0 or splits[-1] != num_ids or (splits[1:] < splits[:-1]).any():
        raise InvalidArgumentError(
            f"{subject}: row_splits must rise from 0 to the number of ids ({num_ids}), got {splits[0]} to {splits[-1]}"
            f"{'' if (splits[1:] >= splits[:-1]).all() else ', falling in between'}"
        )
    return splits


def gradient_rows(pooling: Pooling, splits: NDArray[np.int64]) -> GradientRows:
    """Returns the rows of the pooled result's gradient that each id receives."""
    lengths = np.diff(splits)
    examples = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    if pooling.mode in {MEAN, SQRT_N}:
        counts = np.maximum(lengths, 1)
        shares = (1 / (counts if pooling.mode == MEAN else np.sqrt(counts))).astype(np.float32)
        return GradientRows(None, examples, np.repeat(shares, lengths))
    if pooling.mode == FIRST_N:
        places = np.arange(len(examples), dtype=np.int64) - np.repeat(splits[:-1], lengths)
        kept = places < pooling.first_n
        rows = examples[kept].astype(np.int64) * pooling.first_n + places[kept]
        if len(lengths) * pooling.first_n >= 2**31:
            raise InvalidArgumentError(f"first_n: batch * n must be below 2^31, got {len(lengths) * pooling.first_n}")
        return GradientRows(kept, rows.astype(np.int32), None)
    return GradientRows(None, examples, None)
