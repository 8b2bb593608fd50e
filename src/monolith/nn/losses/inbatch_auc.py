"""A smooth stand-in for AUC: every positive of the batch against every negative."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from monolith.nn._arguments import require_shape
from monolith.nn.losses._reduction import reduce_loss

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.nn.losses._reduction import Reduction

_INVALID_LABEL = -10000.0
"""Labels from here down are no labels."""


def inbatch_auc_loss(label: Tensor, logit: Tensor, neg_weight: float = 1.0, *, reduction: Reduction = "mean") -> Tensor:
    """``-ln sigmoid(z_p - z_n)`` over all pairs of a positive p and a negative n.

    ByteDance Monolith returned the log-likelihood, of the opposite sign, which had to be negated; this is a loss.
    Upstream summed over pairs; here the mean is the default.

    Args:
        label: ``[B]``: > 0 is positive, above -10000 up to 0 negative, everything else is ignored.
        logit: ``[B]``.
        neg_weight: Factor of the gradient that reaches the negatives' logits.
        reduction: "mean" over pairs, "sum", or "none" for ``[B, B]`` (positives by row, 0 where there is no pair).
    """
    require_shape("inbatch_auc_loss", "label", label, ("B",))
    require_shape("inbatch_auc_loss", "logit", logit, (label.shape[0],))
    is_positive = label > 0
    is_negative = (label > _INVALID_LABEL) & (label <= 0)
    logit = torch.where(is_positive | is_negative, logit, 0.0)
    negative_logit = logit if neg_weight == 1.0 else neg_weight * logit + (1.0 - neg_weight) * logit.detach()
    losses = functional.softplus(negative_logit.unsqueeze(0) - logit.unsqueeze(1))
    pairs = (is_positive.unsqueeze(1) & is_negative.unsqueeze(0)).to(logit.dtype)
    return reduce_loss(losses, pairs, reduction)
