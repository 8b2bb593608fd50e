"""Rows that some readers wrap once more, as [B, 1, ...], brought back to [B, ...]."""

from __future__ import annotations

import torch

from monolith.tensors.ragged import Ragged

__all__ = ["maybe_squeeze_3d_tensor"]


def maybe_squeeze_3d_tensor(x: Ragged) -> Ragged:
    """Rows of numbers, from rows of numbers or from rows of exactly one row of numbers.

    Args:
        x: Two dims: returned as it is. Three dims, the middle one of size 1 in every row: the result is without it. The
            innermost dim may be ragged or uniform; the result is a `Ragged` of two dims either way.

    Raises:
        ValueError: no `Ragged`, another number of dims, or a row that does not hold exactly one.

    >>> maybe_squeeze_3d_tensor(Ragged.from_lists([[[0, 1]], [[2]]]))
    Ragged([[0, 1], [2]], dtype=torch.int64)
    """
    if not isinstance(x, Ragged):
        raise ValueError(f"input must be RaggedTensor, got {type(x).__name__}")  # noqa: TRY004 - the specified class
    if x.ndim == 2:
        return x
    if x.ndim != 3:
        raise ValueError(f"Unknown shape of RaggedTensor. Expected 2 or 3 dims, got {x.ndim}: {x}")
    if not torch.compiler.is_compiling() and bool((x.lengths() != 1).any()):
        row = int((x.lengths() != 1).nonzero()[0])
        raise ValueError(
            f"a RaggedTensor of 3 dims must hold one row in each row to lose its middle dim, "
            f"got {int(x.lengths()[row])} in row {row}"
        )
    if isinstance(x.values, Ragged):
        return x.values
    num_rows, width = x.values.shape
    return Ragged.from_lengths(x.values.reshape(-1), x.row_splits.new_full((num_rows,), width), validate=False)
