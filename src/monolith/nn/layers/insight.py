"""How much each input feature moves the first layer of a tower."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from monolith.nn._arguments import positive_sizes, require_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def feature_insight(x: Tensor, weight: Tensor, segment_sizes: Sequence[int], *, aggregate: bool = False) -> Tensor:
    """The part of ``x W`` that each segment of x's columns contributes.

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
    sizes = list(positive_sizes("feature_insight", "segment_sizes", segment_sizes))
    require_shape("feature_insight", "x", x, ("B", "D"))
    require_shape("feature_insight", "weight", weight, (x.shape[1], "K"))
    if sum(sizes) != x.shape[1]:
        raise ValueError(f"feature_insight: segment_sizes must add up to {x.shape[1]} columns, got {sum(sizes)}")
    parts = [part @ rows for part, rows in zip(torch.split(x, sizes, dim=1), torch.split(weight, sizes), strict=True)]
    if aggregate:
        return torch.stack([part.square().sum(dim=1) for part in parts], dim=1)
    return torch.cat(parts, dim=1)
