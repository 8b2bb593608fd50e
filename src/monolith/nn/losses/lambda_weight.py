"""Weights that make pairwise and listwise losses care for a ranking metric.

A rank is 1 for the highest score of a list. Labels below 0 are padding: they have gain 0 and the last ranks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def exponential_gain(labels: Tensor) -> Tensor:
    """``2^label - 1``, the gain of NDCG."""
    return torch.exp2(labels) - 1.0


def linear_gain(labels: Tensor) -> Tensor:
    """Returns the label itself."""
    return labels


def logarithmic_discount(ranks: Tensor) -> Tensor:
    """``1 / log2(1 + rank)``, the discount of NDCG."""
    return math.log(2.0) / torch.log1p(ranks)


def reciprocal_discount(ranks: Tensor) -> Tensor:
    """``1 / rank``."""
    return 1.0 / ranks


def ranks_by_score(logits: Tensor, is_valid: Tensor) -> Tensor:
    """Returns the rank ``[Q, L]`` of each score in its list, 1 for the highest; ties by position; padding last."""
    scores = torch.where(is_valid, logits.detach(), -torch.inf)
    # Two stable sorts: padding comes after valid scores of -inf, too.
    order = torch.argsort(scores, dim=1, descending=True, stable=True)
    is_padding = (~is_valid).gather(1, order).to(torch.int8)
    order = order.gather(1, torch.argsort(is_padding, dim=1, stable=True))
    return (torch.argsort(order, dim=1) + 1).to(logits.dtype)


def inverse_max_dcg(
    labels: Tensor, gain: Callable[[Tensor], Tensor], discount: Callable[[Tensor], Tensor], topn: int | None
) -> Tensor:
    """``1 / (the largest DCG the labels allow)``, ``[Q, 1]``; 0 for a list without gain."""
    ideal = labels.clamp_min(0.0).sort(dim=1, descending=True).values[:, :topn]
    ranks = torch.arange(1, ideal.shape[1] + 1, device=labels.device, dtype=labels.dtype)
    dcg = (gain(ideal) * discount(ranks)).sum(dim=1, keepdim=True)
    return torch.where(dcg > 0, 1.0 / torch.where(dcg > 0, dcg, 1.0), 0.0)


class LambdaWeight(ABC):
    """Weights of pairs, items or places, from labels ``[Q, L]`` (padding < 0) and ranks ``[Q, L]``; no gradient."""

    is_scaled: ClassVar[bool] = True
    """Whether pair weights, which are of the order of 1 / L, are multiplied by L, to keep the learning rate."""

    @abstractmethod
    def pair_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Returns the weight ``[Q, L, L]`` of each pair, >= 0 and symmetric; for pairwise losses."""

    def individual_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:  # noqa: ARG002 - for subclasses
        """Returns what replaces each label in the softmax loss, ``[Q, L]``; by default the label itself."""
        return labels.clamp_min(0.0)

    def place_weights(self, ranks: Tensor) -> Tensor:
        """Returns the weight of each place of the ideal order, in ListMLE; 1 by default."""
        return torch.ones_like(ranks)


class IdentityLambdaWeight(LambdaWeight):
    """1 for every pair, however far its labels are apart."""

    is_scaled = False

    def pair_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Returns 1 for every pair."""
        return torch.ones_like(labels).unsqueeze(2) * torch.ones_like(ranks).unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class DCGLambdaWeight(LambdaWeight):
    """``abs(G_i - G_j) * ((1 - s) u_ij + s v_ij)`` for pairs of which one is among the top n.

    ``G`` is the gain of the label, divided by the list's largest DCG if `is_normalized`; with D the discount and s the
    `smooth_fraction`, ``u_ij = abs(D(abs(r_i - r_j)) - D(abs(r_i - r_j) + 1))`` (LambdaLoss, ranks capped at n + 1) and
    ``v_ij = abs(D(r_i) - D(r_j))`` (LambdaMART, D = 0 beyond n). Items: ``G_i D(r_i)``.

    Reference: Wang et al., The LambdaLoss Framework, CIKM 2018.
    """

    topn: int | None = None
    """n; the complete list by default."""
    smooth_fraction: float = 0.0
    """s in [0, 1]."""
    gain: Callable[[Tensor], Tensor] = linear_gain
    """Gain of a label."""
    discount: Callable[[Tensor], Tensor] = reciprocal_discount
    """Discount of a rank."""
    is_normalized: bool = False
    """Whether gains are divided by the largest DCG of the list."""

    def __post_init__(self) -> None:
        _require_topn(self.topn)
        if not 0.0 <= self.smooth_fraction <= 1.0:
            raise ValueError(f"DCGLambdaWeight: smooth_fraction must be in [0, 1], got {self.smooth_fraction!r}")

    @classmethod
    def ndcg(cls, *, topn: int | None = None, smooth_fraction: float = 0.0) -> DCGLambdaWeight:
        """Returns the weights of NDCG: gain ``2^label - 1``, discount ``1 / log2(1 + rank)``, normalised."""
        return cls(
            topn=topn,
            smooth_fraction=smooth_fraction,
            gain=exponential_gain,
            discount=logarithmic_discount,
            is_normalized=True,
        )

    @classmethod
    def reciprocal_rank(cls, *, topn: int | None = None, smooth_fraction: float = 0.0) -> DCGLambdaWeight:
        """Returns the weights of mean reciprocal rank: gain is the label, discount ``1 / rank``, normalised."""
        return cls(topn=topn, smooth_fraction=smooth_fraction, is_normalized=True)

    def pair_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Returns the pair weights of the class docstring."""
        topn = labels.shape[1] if self.topn is None else self.topn
        gains = self._gains(labels)
        distance = _pair_differences(ranks.clamp_max(topn + 1))
        safe_distance = distance.clamp_min(1.0)
        relative = (self.discount(safe_distance) - self.discount(safe_distance + 1.0)).abs()
        relative = torch.where(distance > 0, relative, 0.0)
        absolute = _pair_differences(torch.where(ranks > topn, 0.0, self.discount(ranks)))
        discount = (1.0 - self.smooth_fraction) * relative + self.smooth_fraction * absolute
        return _pair_differences(gains) * discount * _one_in_top(ranks, topn)

    def individual_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Returns the item weights of the class docstring."""
        return self._gains(labels) * self.discount(ranks)

    def _gains(self, labels: Tensor) -> Tensor:
        gains = torch.where(labels >= 0, self.gain(labels.clamp_min(0.0)), 0.0)
        if self.is_normalized:
            gains = gains * inverse_max_dcg(labels, self.gain, self.discount, self.topn)
        return gains


@dataclass(frozen=True, kw_only=True)
class PrecisionLambdaWeight(LambdaWeight):
    """1 for pairs of a relevant and an irrelevant item of which exactly one is among the top n: precision@n."""

    topn: int
    """n."""
    min_relevant_label: float = 1.0
    """Labels from here on are relevant."""

    def __post_init__(self) -> None:
        _require_topn(self.topn)

    def pair_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Returns the pair weights of the class docstring."""
        relevant = (labels >= self.min_relevant_label).to(labels.dtype)
        in_top = (ranks <= self.topn).to(labels.dtype)
        return _pair_differences(relevant) * _pair_differences(in_top)


@dataclass(frozen=True, kw_only=True)
class ListMLELambdaWeight(IdentityLambdaWeight):
    """Weights of the places of ListMLE: ``2^(list_size - rank) - 1`` by default, the position-aware p-ListMLE.

    Reference: Lan et al., Position-Aware ListMLE, UAI 2014.
    """

    list_size: int
    """The length of a list for which the last place has weight 0."""
    discount: Callable[[Tensor], Tensor] | None = None
    """Weight of a place, from its rank; replaces the default."""

    def place_weights(self, ranks: Tensor) -> Tensor:
        """Returns the place weights of the class docstring."""
        if self.discount is not None:
            return self.discount(ranks)
        return torch.exp2((self.list_size - ranks).clamp_min(0.0)) - 1.0


def _pair_differences(values: Tensor) -> Tensor:
    return (values.unsqueeze(2) - values.unsqueeze(1)).abs()


def _one_in_top(ranks: Tensor, topn: int) -> Tensor:
    in_top = ranks <= topn
    return (in_top.unsqueeze(2) | in_top.unsqueeze(1)).to(ranks.dtype)


def _require_topn(topn: int | None) -> None:
    if topn is not None and topn < 1:
        raise ValueError(f"lambda weight: topn must be >= 1 or None, got {topn}")
