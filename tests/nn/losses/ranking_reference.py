"""Ranking losses of one list, in loops, from the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

from monolith.nn import DCGLambdaWeight, IdentityLambdaWeight, LambdaWeight, ListMLELambdaWeight, PrecisionLambdaWeight

List = list[float]
Weights = list[float]


def ranks_of(scores: List) -> list[int]:
    """1 for the highest; ties by position."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    return [order.index(i) + 1 for i in range(len(scores))]


def gain_and_discount(weight: DCGLambdaWeight) -> tuple[Callable[[float], float], Callable[[float], float]]:
    if weight.is_normalized and weight.gain.__name__ == "exponential_gain":
        return (lambda y: 2**y - 1), (lambda r: 1 / math.log2(1 + r))
    return (lambda y: y), (lambda r: 1 / r)


def gains_of(labels: List, weight: DCGLambdaWeight) -> list[float]:
    gain, discount = gain_and_discount(weight)
    gains = [gain(y) for y in labels]
    if weight.is_normalized:
        ideal = sorted(gains, reverse=True)[: weight.topn]
        best = sum(g * discount(place) for place, g in enumerate(ideal, start=1))
        gains = [g / best if best > 0 else 0.0 for g in gains]
    return gains


def dcg_pair_weight(labels: List, scores: List, weight: DCGLambdaWeight, i: int, j: int) -> float:
    _, discount = gain_and_discount(weight)
    topn = len(labels) if weight.topn is None else weight.topn
    ranks, gains = ranks_of(scores), gains_of(labels, weight)
    if ranks[i] > topn and ranks[j] > topn:
        return 0.0
    distance = abs(min(ranks[i], topn + 1) - min(ranks[j], topn + 1))
    relative = abs(discount(distance) - discount(distance + 1)) if distance > 0 else 0.0
    absolute = abs(
        (discount(ranks[i]) if ranks[i] <= topn else 0.0) - (discount(ranks[j]) if ranks[j] <= topn else 0.0)
    )
    share = weight.smooth_fraction
    return abs(gains[i] - gains[j]) * ((1 - share) * relative + share * absolute)


def pair_weight(labels: List, scores: List, weight: LambdaWeight | None, i: int, j: int) -> float:
    if isinstance(weight, DCGLambdaWeight):
        return dcg_pair_weight(labels, scores, weight, i, j)
    if isinstance(weight, PrecisionLambdaWeight):
        ranks = ranks_of(scores)
        relevant = [y >= weight.min_relevant_label for y in labels]
        return float(relevant[i] != relevant[j] and (ranks[i] <= weight.topn) != (ranks[j] <= weight.topn))
    if isinstance(weight, IdentityLambdaWeight):
        return 1.0
    return abs(labels[i] - labels[j])


def pairwise(
    labels: List, scores: List, weights: Weights, lambda_weight: LambdaWeight | None, loss: Callable[[float], float]
) -> list[tuple[float, float]]:
    """(weight, loss) of each pair that counts; the lambda weight times the padded length is left to the caller."""
    terms = []
    for i in range(len(labels)):
        for j in range(len(labels)):
            if labels[i] > labels[j]:
                weight = weights[i] * pair_weight(labels, scores, lambda_weight, i, j)
                terms.append((weight, loss(scores[i] - scores[j])))
    return [term for term in terms if term[0] != 0]


PAIR_LOSSES: dict[str, Callable[[float], float]] = {
    "pairwise_hinge_loss": lambda d: max(0.0, 1 - d),
    "pairwise_logistic_loss": lambda d: math.log(1 + math.exp(-d)),
    "pairwise_soft_zero_one_loss": lambda d: 1 / (1 + math.exp(d)),
}


def softmax_list(labels: List, scores: List, weights: Weights, lambda_weight: LambdaWeight | None) -> float | None:
    targets = list(labels)
    if isinstance(lambda_weight, DCGLambdaWeight):
        _, discount = gain_and_discount(lambda_weight)
        ranks = ranks_of(scores)
        targets = [g * discount(r) for g, r in zip(gains_of(labels, lambda_weight), ranks, strict=True)]
    targets = [t * w for t, w in zip(targets, weights, strict=True)]
    if sum(targets) <= 0:
        return None
    total = sum(math.exp(s) for s in scores)
    return -sum(t * math.log(math.exp(s) / total) for t, s in zip(targets, scores, strict=True))


def list_mle(labels: List, scores: List, lambda_weight: LambdaWeight | None) -> float | None:
    if not labels:
        return None
    order = sorted(range(len(labels)), key=lambda i: -labels[i])
    loss = 0.0
    for place, i in enumerate(order, start=1):
        behind = sum(math.exp(scores[k]) for k in order[place - 1 :])
        weight = 1.0
        if isinstance(lambda_weight, ListMLELambdaWeight):
            weight = 2.0 ** (lambda_weight.list_size - place) - 1
        loss += weight * (math.log(behind) - scores[i])
    return loss


def approx_ndcg(labels: List, scores: List, alpha: float) -> float | None:
    gains = [2**y - 1 for y in labels]
    best = sum(g / math.log2(1 + place) for place, g in enumerate(sorted(gains, reverse=True), start=1))
    if best == 0:
        return None
    dcg = 0.0
    for i in range(len(labels)):
        rank = 1 + sum(1 / (1 + math.exp(-alpha * (scores[j] - scores[i]))) for j in range(len(labels)) if j != i)
        dcg += gains[i] / math.log2(1 + rank)
    return -dcg / best
