"""From losses of single terms to one number."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from monolith.nn._arguments import require_choice

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def reduce_loss(losses: Tensor, weights: Tensor | None, reduction: Reduction) -> Tensor:
    """Weights and reduces losses.

    Args:
        losses: One per term, finite: what does not count is made so before, or its gradient is 0 * NaN.
        weights: One per term, 0 for terms that do not count. None: all 1.
        reduction: "mean": ``sum of w_i l_i / number of terms with w_i != 0``, 0 if there are none. "sum":
            ``sum of w_i l_i``. "none": ``w_i l_i``.
    """
    require_choice("loss", "reduction", reduction, ("mean", "sum", "none"))
    if weights is None:
        weighted, num_terms = losses, torch.tensor(losses.numel(), device=losses.device)
    else:
        counts = weights != 0
        weighted = losses * weights
        num_terms = counts.sum()
    if reduction == "none":
        return weighted
    total = weighted.sum()
    return total if reduction == "sum" else total / num_terms.clamp_min(1)
