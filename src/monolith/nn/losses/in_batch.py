"""Losses over a batch: softmax with in-batch negatives, and a smooth stand-in for AUC over all pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from monolith.nn._arguments import require_shape
from monolith.nn.losses._reduction import reduce_loss

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.nn.losses._reduction import Reduction


def in_batch_logits(
    query: Tensor,
    item: Tensor,
    *,
    item_step_interval: Tensor | None = None,
    item_ids: Tensor | None = None,
    normalize: bool = True,
    temperature: float = 1.0,
) -> Tensor:
    """Each query against each item of the batch, corrected for how often an item turns up.

    ``S_bc = <q_b, i_c> / temperature + ln(max(interval_c, 1))``. An item seen every n steps is a negative with
    probability about 1 / n, so popular items are negatives too often; subtracting ln(1 / n) undoes it.

    Reference: Yi et al., Sampling-Bias-Corrected Neural Modeling, RecSys 2019.

    Args:
        query: ``[B, d]``.
        item: ``[B, d]``; row b is the positive of query b.
        item_step_interval: ``[B]``, steps between two occurrences of the item, from a slice that learns by
            ``BatchSoftmax``. A constant: no gradient flows to it. None: no correction.
        item_ids: ``[B]``. Other rows that hold the positive's own item are no negatives: they get -inf.
        normalize: Whether to bring queries and items to length 1.
        temperature: > 0.

    Returns:
        ``[B, B]``; the positives are on the diagonal.
    """
    subject = "in_batch_logits"
    require_shape(subject, "query", query, ("B", "d"))
    require_shape(subject, "item", item, tuple(query.shape))
    if not temperature > 0:
        raise ValueError(f"{subject}: temperature must be > 0, got {temperature!r}")
    if normalize:
        query, item = functional.normalize(query, dim=1), functional.normalize(item, dim=1)
    logits = query @ item.T / temperature
    if item_step_interval is not None:
        require_shape(subject, "item_step_interval", item_step_interval, (query.shape[0],))
        logits = logits + item_step_interval.detach().to(logits.dtype).clamp_min(1.0).log()
    return logits if item_ids is None else _without_own_item(logits, item_ids)


def batch_softmax_loss(
    query: Tensor,
    item: Tensor,
    item_step_interval: Tensor | None = None,
    r: Tensor | None = None,
    *,
    normalize: bool = True,
    temperature: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """``-r_b ln(softmax over c of S_bc at c = b)`` with S of `in_batch_logits`.

    The loss of ByteDance Monolith was the sum over the batch; here the mean is the default and ``reduction="sum"``
    gives upstream's. To exclude other rows with the positive's item, take ``cross_entropy`` of `in_batch_logits`.

    Args:
        query: ``[B, d]``.
        item: ``[B, d]``; row b is the positive of query b.
        item_step_interval: See `in_batch_logits`.
        r: Reward (weight) ``[B]``; 1 by default.
        normalize: See `in_batch_logits`.
        temperature: See `in_batch_logits`.
        reduction: "mean" over the rows with a reward, "sum" or "none".
    """
    logits = in_batch_logits(
        query, item, item_step_interval=item_step_interval, normalize=normalize, temperature=temperature
    )
    losses = logits.logsumexp(dim=1) - logits.diagonal()
    if r is not None:
        require_shape("batch_softmax_loss", "r", r, (query.shape[0],))
        r = r.to(losses.dtype)
    return reduce_loss(losses, r, reduction)


def _without_own_item(logits: Tensor, item_ids: Tensor) -> Tensor:
    require_shape("in_batch_logits", "item_ids", item_ids, (logits.shape[0],))
    same = item_ids.unsqueeze(1) == item_ids.unsqueeze(0)
    others = ~torch.eye(logits.shape[0], dtype=torch.bool, device=logits.device)
    return logits.masked_fill(same & others, -torch.inf)


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
