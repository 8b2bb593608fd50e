"""How much each input feature moves the first layer of a tower.

Not among the layers, because code without a dependency on layers writes summaries of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def feature_insight(x: Tensor, weight: Tensor, segment_sizes: Sequence[int], *, aggregate: bool = False) -> Tensor:
    """Returns the part of ``x W`` that each segment of x's columns contributes.

    ``out[b, f K + k] = sum over columns j of segment f of x[b, j] W[j, k]``; with `aggregate`,
    ``out[b, f] = sum over k of out[b, f K + k]^2``.

    Args:
        x: ``[B, D]``.
        weight: W ``[D, K]``. A torch layer keeps its transpose.
        segment_sizes: Number of columns of each of F features, in order; they add up to D.
        aggregate: Whether to sum the squares of a feature's K parts.

    Returns:
        ``[B, F K]``, or ``[B, F]`` with `aggregate`.
    """
    if x.ndim != 2:
        raise ValueError(f"feature_insight: x must have shape [B, D], got {list(x.shape)}")
    if weight.ndim != 2 or weight.shape[0] != x.shape[1]:
        raise ValueError(f"feature_insight: weight must have shape [{x.shape[1]}, K], got {list(weight.shape)}")
    sizes = require_segments("feature_insight", segment_sizes, x.shape[1])
    parts = [part @ rows for part, rows in zip(torch.split(x, sizes, dim=1), torch.split(weight, sizes), strict=True)]
    if aggregate:
        return torch.stack([part.square().sum(dim=1) for part in parts], dim=1)
    return torch.cat(parts, dim=1)


def require_segments(subject: str, segment_sizes: Sequence[int], num_columns: int) -> list[int]:
    """Returns the sizes as a list; raises unless there is one, all are at least 1 and they add up to the columns."""
    sizes = list(segment_sizes)
    if not sizes:
        raise ValueError(f"{subject}: segment_sizes must have at least one size, got none")
    for index, size in enumerate(sizes):
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{subject}: segment_sizes[{index}] must be an integer, got {size!r}")
        if size < 1:
            raise ValueError(f"{subject}: segment_sizes[{index}] must be >= 1, got {size}")
    if sum(sizes) != num_columns:
        raise ValueError(f"{subject}: segment_sizes must add up to {num_columns} columns, got {sum(sizes)}")
    return sizes
