"""Learning to rank: losses over lists of candidates.

All take labels and logits ``[Q, L]``, one row per query, by name. Labels below 0 are padding: they count nowhere, and
their logits may hold anything. Weights are ``[Q, L]``, or ``[Q, 1]`` for one weight per query. An uninformative list
(all padding, no relevant item, all labels equal) adds nothing. "mean" is over the terms whose weight is not 0: pairs
for pairwise losses, items for pointwise ones, lists for listwise ones. A pair weighs as much as its labels differ,
unless a lambda weight defines it otherwise, times the weight of its better item.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from monolith.nn._arguments import require_choice, require_shape
from monolith.nn.losses._reduction import reduce_loss
from monolith.nn.losses.lambda_weight import exponential_gain, inverse_max_dcg, logarithmic_discount, ranks_by_score

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.nn.losses._reduction import Reduction
    from monolith.nn.losses.lambda_weight import LambdaWeight


def pairwise_hinge_loss(
    *,
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    lambda_weight: LambdaWeight | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """``max(0, 1 - (s_i - s_j))`` over pairs with ``y_i > y_j``."""
    losses = functional.relu(1.0 - _score_differences(labels, logits))
    return reduce_loss(losses, _pair_weights(labels, logits, weights, lambda_weight), reduction)


def pairwise_logistic_loss(
    *,
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    lambda_weight: LambdaWeight | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """``ln(1 + exp(-(s_i - s_j)))`` over pairs with ``y_i > y_j``: RankNet; with one positive per list, BPR."""
    losses = functional.softplus(-_score_differences(labels, logits))
    return reduce_loss(losses, _pair_weights(labels, logits, weights, lambda_weight), reduction)


def pairwise_soft_zero_one_loss(
    *,
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    lambda_weight: LambdaWeight | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """``sigmoid(-(s_i - s_j))`` over pairs with ``y_i > y_j``: a smooth count of wrong pairs."""
    losses = torch.sigmoid(-_score_differences(labels, logits))
    return reduce_loss(losses, _pair_weights(labels, logits, weights, lambda_weight), reduction)


def softmax_loss(
    *,
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    lambda_weight: LambdaWeight | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """``-sum over i of y_i ln softmax(s)_i`` for each list, with ``y_i`` times the item's weight.

    A lambda weight puts its individual weights in the place of the labels.
    """
    is_valid, scores = _checked("softmax_loss", labels, logits)
    targets = torch.where(is_valid, labels, 0.0)
    if lambda_weight is not None:
        targets = torch.where(is_valid, lambda_weight.individual_weights(labels, ranks_by_score(logits, is_valid)), 0.0)
    if weights is not None:
        targets = targets * _broadcast_weights(weights, labels, is_valid)
    log_shares = torch.log_softmax(scores.masked_fill(~is_valid, torch.finfo(scores.dtype).min), dim=1)
    losses = -(targets * log_shares.masked_fill(~is_valid, 0.0)).sum(dim=1)
    return reduce_loss(losses, (targets.sum(dim=1) > 0).to(losses.dtype), reduction)


def sigmoid_cross_entropy_loss(
    *, labels: Tensor, logits: Tensor, weights: Tensor | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """``max(s, 0) - s y + ln(1 + exp(-abs(s)))`` over items."""
    is_valid, scores = _checked("sigmoid_cross_entropy_loss", labels, logits)
    targets = torch.where(is_valid, labels, 0.0)
    losses = functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    return reduce_loss(losses, _item_weights(weights, labels, is_valid), reduction)


def mean_squared_loss(
    *, labels: Tensor, logits: Tensor, weights: Tensor | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """``(s - y)^2`` over items."""
    is_valid, scores = _checked("mean_squared_loss", labels, logits)
    losses = (scores - torch.where(is_valid, labels, 0.0)).square()
    return reduce_loss(losses, _item_weights(weights, labels, is_valid), reduction)


def list_mle_loss(
    *,
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    lambda_weight: LambdaWeight | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """``sum over places p of (ln sum over q >= p of exp(s_q) - s_p)`` for each list, places by descending label.

    The negative log likelihood of the ideal order under Plackett-Luce. Equal labels stay in the order of the list. A
    lambda weight multiplies the places by its place weights (see `ListMLELambdaWeight`); `weights` are of lists:
    ``[Q, 1]``. Reference: Xia et al., ListMLE, ICML 2008.
    """
    is_valid, scores = _checked("list_mle_loss", labels, logits)
    order = torch.argsort(torch.where(is_valid, labels, -torch.inf), dim=1, descending=True, stable=True)
    counts = is_valid.gather(1, order)
    placed = scores.gather(1, order)
    behind = placed.masked_fill(~counts, torch.finfo(placed.dtype).min).flip(1).logcumsumexp(dim=1).flip(1)
    places = (behind - placed).masked_fill(~counts, 0.0)
    if lambda_weight is not None:
        ranks = torch.arange(1, labels.shape[1] + 1, device=labels.device, dtype=labels.dtype).expand_as(labels)
        places = places * lambda_weight.place_weights(ranks)
    return reduce_loss(places.sum(dim=1), _list_weights("list_mle_loss", weights, is_valid.any(dim=1)), reduction)


def approx_ndcg_loss(
    *,
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    alpha: float = 10.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """``-NDCG`` for each list, with smooth ranks ``r_i = 1 + sum over j != i of sigmoid(alpha (s_j - s_i))``.

    ``NDCG = sum over i of (2^y_i - 1) / log2(1 + r_i)``, divided by its largest value; in [-1, 0]. `weights` are of
    lists: ``[Q, 1]``. Reference: Qin et al., Information Retrieval 2010.
    """
    is_valid, scores = _checked("approx_ndcg_loss", labels, logits)
    pairs = is_valid.unsqueeze(1) & ~torch.eye(labels.shape[1], dtype=torch.bool, device=labels.device)
    above = torch.sigmoid(alpha * (scores.unsqueeze(1) - scores.unsqueeze(2)))
    ranks = 1.0 + torch.where(pairs, above, 0.0).sum(dim=2)
    gains = torch.where(is_valid, exponential_gain(labels.clamp_min(0.0)), 0.0)
    ideal = inverse_max_dcg(labels, exponential_gain, logarithmic_discount, None)
    ndcg = (gains * ideal * logarithmic_discount(ranks)).sum(dim=1)
    return reduce_loss(-ndcg, _list_weights("approx_ndcg_loss", weights, gains.sum(dim=1) > 0), reduction)


RANKING_LOSSES: dict[str, Callable[..., Tensor]] = {
    "approx_ndcg_loss": approx_ndcg_loss,
    "list_mle_loss": list_mle_loss,
    "mean_squared_loss": mean_squared_loss,
    "pairwise_hinge_loss": pairwise_hinge_loss,
    "pairwise_logistic_loss": pairwise_logistic_loss,
    "pairwise_soft_zero_one_loss": pairwise_soft_zero_one_loss,
    "sigmoid_cross_entropy_loss": sigmoid_cross_entropy_loss,
    "softmax_loss": softmax_loss,
}
"""The losses of this file by key, for `RankingLoss`."""


def _checked(subject: str, labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns which items are valid, and the scores with zeros for padding."""
    require_shape(subject, "labels", labels, ("Q", "L"))
    require_shape(subject, "logits", logits, tuple(labels.shape))
    if not labels.dtype.is_floating_point:
        raise TypeError(f"{subject}: labels must be floating point like the logits, got {labels.dtype}")
    is_valid = labels >= 0
    return is_valid, torch.where(is_valid, logits, 0.0)


def _score_differences(labels: Tensor, logits: Tensor) -> Tensor:
    _, scores = _checked("pairwise loss", labels, logits)
    return scores.unsqueeze(2) - scores.unsqueeze(1)


def _broadcast_weights(weights: Tensor, labels: Tensor, is_valid: Tensor) -> Tensor:
    num_items = weights.shape[1] if weights.ndim == 2 and weights.shape[1] == 1 else labels.shape[1]
    require_shape("ranking loss", "weights", weights, (labels.shape[0], num_items))
    return torch.where(is_valid, weights.to(labels.dtype), 0.0)


def _item_weights(weights: Tensor | None, labels: Tensor, is_valid: Tensor) -> Tensor:
    return is_valid.to(labels.dtype) if weights is None else _broadcast_weights(weights, labels, is_valid)


def _list_weights(subject: str, weights: Tensor | None, counts: Tensor) -> Tensor:
    if weights is None:
        return counts.float()
    require_shape(subject, "weights", weights, (counts.shape[0], 1))
    return torch.where(counts, weights.squeeze(1), 0.0)


def _pair_weights(labels: Tensor, logits: Tensor, weights: Tensor | None, lambda_weight: LambdaWeight | None) -> Tensor:
    """For each pair with ``y_i > y_j``: its lambda weight, or ``y_i - y_j``, times the weight of item i."""
    is_valid = labels >= 0
    both = is_valid.unsqueeze(2) & is_valid.unsqueeze(1)
    differences = labels.unsqueeze(2) - labels.unsqueeze(1)
    pairs = torch.where(both, differences.clamp_min(0.0), 0.0)
    if lambda_weight is not None:
        lambdas = lambda_weight.pair_weights(labels, ranks_by_score(logits, is_valid))
        pairs = (pairs > 0) * lambdas * (labels.shape[1] if lambda_weight.is_scaled else 1)
    if weights is not None:
        pairs = pairs * _broadcast_weights(weights, labels, is_valid).unsqueeze(2)
    return pairs


class RankingLoss(nn.Module):
    """``sum over keys of weight_key * loss_key``.

    Args:
        losses: A key of `RANKING_LOSSES`, or keys with their weights.
        lambda_weight: For those of the losses that take one; rejected if none does.
        reduction: Of each loss, "mean" or "sum".

    >>> loss = RankingLoss({"softmax_loss": 1.0, "mean_squared_loss": 0.1})
    >>> loss(labels=torch.tensor([[1.0, 0.0, -1.0]]), logits=torch.zeros(1, 3))
    tensor(0.7431)
    """

    def __init__(
        self,
        losses: str | Mapping[str, float],
        *,
        lambda_weight: LambdaWeight | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.losses = {losses: 1.0} if isinstance(losses, str) else dict(losses)
        if not self.losses:
            raise ValueError(f"RankingLoss: needs at least one of {', '.join(RANKING_LOSSES)}, got none")
        for key in self.losses:
            require_choice("RankingLoss", "key", key, list(RANKING_LOSSES))
        require_choice("RankingLoss", "reduction", reduction, ("mean", "sum"))
        self.reduction = reduction
        self.lambda_weight = lambda_weight
        self._takes_lambda = {
            key for key in self.losses if "lambda_weight" in inspect.signature(RANKING_LOSSES[key]).parameters
        }
        if lambda_weight is not None and not self._takes_lambda:
            raise ValueError(f"RankingLoss: lambda_weight has no meaning for {', '.join(self.losses)}")

    def forward(self, *, labels: Tensor, logits: Tensor, weights: Tensor | None = None) -> Tensor:
        """Returns the weighted sum, a scalar, for labels and logits ``[Q, L]``."""
        parts = []
        for key, factor in self.losses.items():
            extra = {"lambda_weight": self.lambda_weight} if key in self._takes_lambda else {}
            loss = RANKING_LOSSES[key](labels=labels, logits=logits, weights=weights, reduction=self.reduction, **extra)
            parts.append(factor * loss)
        return torch.stack(parts).sum()


class RankLists(NamedTuple):
    """Which rows of a flat batch belong together: lists by ascending rank id, rows as they came."""

    rank_ids: Tensor
    """``[Q]``: the distinct ids, ascending."""
    positions: Tensor
    """int64 ``[Q, L]``: the row of each place; 0 where the list has ended."""
    mask: Tensor
    """bool ``[Q, L]``: True up to the end of the list."""

    def gather(self, values: Tensor, *, padding: float = 0.0) -> Tensor:
        """Returns `values` ``[B]`` as ``[Q, L]`` with `padding` after the ends; differentiable. Use -1 for labels."""
        require_shape("RankLists.gather", "values", values, ("B",))
        if values.shape[0] == 0:
            return values.new_full(self.mask.shape, padding)
        return values[self.positions].masked_fill(~self.mask, padding)


def group_into_lists(rank_ids: Tensor) -> RankLists:
    """Returns the lists of a flat batch whose rows carry the id of their query.

    Args:
        rank_ids: int64 ``[B]``, in any order.

    >>> lists = group_into_lists(torch.tensor([7, 3, 7]))
    >>> lists.gather(torch.tensor([1.0, 0.0, 2.0]), padding=-1.0)
    tensor([[ 0., -1.],
            [ 1.,  2.]])
    """
    require_shape("group_into_lists", "rank_ids", rank_ids, ("B",))
    distinct, list_of_row, lengths = torch.unique(rank_ids, return_inverse=True, return_counts=True)
    order = torch.argsort(list_of_row, stable=True)
    longest = int(lengths.max()) if len(lengths) else 0
    mask = torch.arange(longest, device=rank_ids.device) < lengths.unsqueeze(1)
    positions = torch.zeros(mask.shape, dtype=torch.int64, device=rank_ids.device)
    positions[mask] = order
    return RankLists(distinct, positions, mask)
