"""Learning to rank: every loss against loops over one list at a time, with padding, weights and lambda weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from monolith.nn import (
    RANKING_LOSSES,
    DCGLambdaWeight,
    IdentityLambdaWeight,
    LambdaWeight,
    ListMLELambdaWeight,
    PrecisionLambdaWeight,
    RankingLoss,
    approx_ndcg_loss,
    group_into_lists,
    list_mle_loss,
    mean_squared_loss,
    pairwise_logistic_loss,
    sigmoid_cross_entropy_loss,
    softmax_loss,
)
from nn.layers.arrays import random_tensor
from nn.losses import ranking_reference as reference

PAD = -1.0
LABELS = torch.tensor(
    [
        [0.0, 2.0, 1.0, 0.0, 3.0],
        [1.0, 0.0, 0.0, PAD, PAD],
        [PAD, PAD, PAD, PAD, PAD],
        [0.0, 0.0, PAD, 0.0, PAD],
        [PAD, 1.0, PAD, 2.0, 0.0],
    ],
    dtype=torch.float64,
)
LOGITS = random_tensor(5, 5, seed=3).masked_fill(LABELS < 0, torch.nan)  # nothing may look at padding
WEIGHTS = torch.rand(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5

LAMBDA_WEIGHTS: dict[str, LambdaWeight | None] = {
    "no lambda": None,
    "dcg": DCGLambdaWeight(),
    "smooth dcg@2": DCGLambdaWeight(topn=2, smooth_fraction=0.25),
    "ndcg": DCGLambdaWeight.ndcg(),
    "absolute ndcg@3": DCGLambdaWeight.ndcg(topn=3, smooth_fraction=1.0),
    "reciprocal rank@1": DCGLambdaWeight.reciprocal_rank(topn=1, smooth_fraction=0.5),
    "precision@2": PrecisionLambdaWeight(topn=2),
    "identity": IdentityLambdaWeight(),
    "list mle": ListMLELambdaWeight(list_size=5),
}
by_lambda_weight = pytest.mark.parametrize("lambda_weight", LAMBDA_WEIGHTS.values(), ids=list(LAMBDA_WEIGHTS))


def lists(weights: Tensor | None = None) -> list[tuple[list[float], list[float], list[float]]]:
    """Labels, scores and weights of each list without its padding."""
    weights = torch.ones_like(LABELS) if weights is None else weights.expand_as(LABELS)
    result = []
    for row in range(len(LABELS)):
        counts = LABELS[row] >= 0
        result.append((LABELS[row][counts].tolist(), LOGITS[row][counts].tolist(), weights[row][counts].tolist()))
    return result


@pytest.mark.parametrize("key", reference.PAIR_LOSSES)
@by_lambda_weight
@pytest.mark.parametrize("weights", [None, WEIGHTS, WEIGHTS[:, :1]], ids=["plain", "by item", "by list"])
def test_pairwise_losses(key: str, lambda_weight: LambdaWeight | None, weights: Tensor | None) -> None:
    scale = 1.0 if lambda_weight is None or not lambda_weight.is_scaled else LABELS.shape[1]
    terms = [
        term for each in lists(weights) for term in reference.pairwise(*each, lambda_weight, reference.PAIR_LOSSES[key])
    ]
    expected = scale * sum(weight * loss for weight, loss in terms)
    arguments: dict[str, Any] = {
        "labels": LABELS,
        "logits": LOGITS,
        "weights": weights,
        "lambda_weight": lambda_weight,
    }
    assert RANKING_LOSSES[key](**arguments, reduction="sum").item() == pytest.approx(expected, rel=1e-10)
    assert RANKING_LOSSES[key](**arguments).item() == pytest.approx(expected / len(terms), rel=1e-10)


@by_lambda_weight
@pytest.mark.parametrize("weights", [None, WEIGHTS, WEIGHTS[:, :1]], ids=["plain", "by item", "by list"])
def test_softmax_loss(lambda_weight: LambdaWeight | None, weights: Tensor | None) -> None:
    losses = [reference.softmax_list(*each, lambda_weight) for each in lists(weights)]
    counted = [loss for loss in losses if loss is not None]
    got = softmax_loss(labels=LABELS, logits=LOGITS, weights=weights, lambda_weight=lambda_weight)
    assert got.item() == pytest.approx(sum(counted) / len(counted), rel=1e-10)


@pytest.mark.parametrize("weights", [None, WEIGHTS, WEIGHTS[:, :1]], ids=["plain", "by item", "by list"])
def test_pointwise_losses(weights: Tensor | None) -> None:
    items = [item for each in lists(weights) for item in zip(*each, strict=True)]
    entropy = [w * (math.log(1 + math.exp(-abs(s))) + max(s, 0) - s * y) for y, s, w in items]
    square = [w * (s - y) ** 2 for y, s, w in items]
    got = sigmoid_cross_entropy_loss(labels=LABELS, logits=LOGITS, weights=weights)
    assert got.item() == pytest.approx(sum(entropy) / len(items), rel=1e-10)
    got = mean_squared_loss(labels=LABELS, logits=LOGITS, weights=weights)
    assert got.item() == pytest.approx(sum(square) / len(items), rel=1e-10)


@pytest.mark.parametrize("lambda_weight", [None, DCGLambdaWeight(), ListMLELambdaWeight(list_size=5)])
@pytest.mark.parametrize("weights", [None, WEIGHTS[:, :1]], ids=["plain", "by list"])
def test_list_mle_loss(lambda_weight: LambdaWeight | None, weights: Tensor | None) -> None:
    factors = [1.0] * 5 if weights is None else weights[:, 0].tolist()
    losses = [reference.list_mle(y, s, lambda_weight) for y, s, _ in lists()]
    counted = [f * loss for f, loss in zip(factors, losses, strict=True) if loss is not None]
    got = list_mle_loss(labels=LABELS, logits=LOGITS, weights=weights, lambda_weight=lambda_weight)
    assert got.item() == pytest.approx(sum(counted) / len(counted), rel=1e-10)


@pytest.mark.parametrize("alpha", [10.0, 1.0])
@pytest.mark.parametrize("weights", [None, WEIGHTS[:, :1]], ids=["plain", "by list"])
def test_approx_ndcg_loss(alpha: float, weights: Tensor | None) -> None:
    factors = [1.0] * 5 if weights is None else weights[:, 0].tolist()
    losses = [reference.approx_ndcg(y, s, alpha) for y, s, _ in lists()]
    counted = [f * loss for f, loss in zip(factors, losses, strict=True) if loss is not None]
    got = approx_ndcg_loss(labels=LABELS, logits=LOGITS, weights=weights, alpha=alpha)
    assert got.item() == pytest.approx(sum(counted) / len(counted), rel=1e-10)


def test_approx_ndcg_of_a_perfect_order_is_minus_one() -> None:
    labels = torch.tensor([[0.0, 1.0, 2.0, 3.0]], dtype=torch.float64)
    assert approx_ndcg_loss(labels=labels, logits=100 * labels).item() == pytest.approx(-1.0)


every_loss = pytest.mark.parametrize("key", RANKING_LOSSES)


@every_loss
def test_padding_gets_no_gradient_and_spoils_none(key: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    loss = RANKING_LOSSES[key](labels=LABELS, logits=logits)
    torch.autograd.backward(loss)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[LABELS < 0].any()
    assert logits.grad[LABELS > 0].any()


@every_loss
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_no_lists_and_no_items_are_a_loss_of_zero(key: str, shape: tuple[int, int]) -> None:
    empty = torch.zeros(shape)
    assert RANKING_LOSSES[key](labels=empty, logits=empty).item() == 0


@every_loss
def test_only_padding_is_a_loss_of_zero(key: str) -> None:
    logits = torch.full((2, 3), torch.nan, requires_grad=True)
    loss = RANKING_LOSSES[key](labels=torch.full((2, 3), -1.0), logits=logits)
    torch.autograd.backward(loss)
    assert loss.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


@every_loss
def test_order_of_a_list_does_not_matter(key: str) -> None:
    labels = torch.tensor([[3.0, 0.0, 1.0, -1.0, 2.0]], dtype=torch.float64)
    logits = random_tensor(1, 5)
    shuffled = torch.tensor([4, 2, 0, 3, 1])
    expected = RANKING_LOSSES[key](labels=labels, logits=logits)
    got = RANKING_LOSSES[key](labels=labels[:, shuffled], logits=logits[:, shuffled])
    torch.testing.assert_close(got, expected)


@every_loss
def test_gradient_is_that_of_finite_differences(key: str) -> None:
    logits = LOGITS.nan_to_num(0.0).requires_grad_()

    def call(scores: Tensor) -> Tensor:
        return RANKING_LOSSES[key](labels=LABELS, logits=scores)

    assert torch.autograd.gradcheck(call, (logits,))


@pytest.mark.slow
@every_loss
def test_compiles_as_one_graph(key: str) -> None:
    torch.compiler.reset()
    logits = LOGITS.nan_to_num(0.0)

    def call(labels: Tensor, scores: Tensor) -> Tensor:
        return RANKING_LOSSES[key](labels=labels, logits=scores, weights=torch.ones_like(scores[:, :1]))

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(LABELS, logits), call(LABELS, logits))


@every_loss
def test_learning_sorts_a_list(key: str) -> None:
    labels = torch.tensor([[0.0, 1.0, 0.0, 2.0]])
    logits = torch.zeros(1, 4, requires_grad=True)
    if key == "sigmoid_cross_entropy_loss":
        labels = labels.clamp_max(1.0)
    if key == "approx_ndcg_loss":
        with torch.no_grad():
            logits.copy_(torch.tensor([[0.05, 0.0, 0.02, -0.05]]))  # equal scores are a saddle of a smooth rank
    optimizer = torch.optim.SGD([logits], lr=0.3)
    for _ in range(300):
        optimizer.zero_grad()
        torch.autograd.backward(RANKING_LOSSES[key](labels=labels, logits=logits))
        optimizer.step()
    scores = logits.detach()[0]
    assert scores[[1, 3]].min() > scores[[0, 2]].max()


def test_lambda_weights_get_no_gradient() -> None:
    logits = LOGITS.nan_to_num(0.0).requires_grad_()
    loss = pairwise_logistic_loss(labels=LABELS, logits=logits, lambda_weight=DCGLambdaWeight.ndcg())
    torch.autograd.backward(loss)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_ranking_loss_adds_up_its_losses() -> None:
    expected = 2.0 * softmax_loss(labels=LABELS, logits=LOGITS) + 0.5 * mean_squared_loss(labels=LABELS, logits=LOGITS)
    loss = RankingLoss({"softmax_loss": 2.0, "mean_squared_loss": 0.5})
    torch.testing.assert_close(loss(labels=LABELS, logits=LOGITS), expected)
    one = RankingLoss("pairwise_logistic_loss", lambda_weight=DCGLambdaWeight.ndcg(), reduction="sum")
    expected = pairwise_logistic_loss(
        labels=LABELS, logits=LOGITS, weights=WEIGHTS, lambda_weight=DCGLambdaWeight.ndcg(), reduction="sum"
    )
    torch.testing.assert_close(one(labels=LABELS, logits=LOGITS, weights=WEIGHTS), expected)


@pytest.mark.parametrize(
    ("message", "losses", "options"),
    [
        ("got 'softmax'; did you mean 'softmax_loss'", "softmax", {}),
        ("needs at least one of approx_ndcg_loss, .*, got none", {}, {}),
        (
            "lambda_weight has no meaning for mean_squared_loss",
            "mean_squared_loss",
            {"lambda_weight": DCGLambdaWeight()},
        ),
        ("reduction must be one of 'mean', 'sum', got 'none'", "softmax_loss", {"reduction": "none"}),
    ],
)
def test_wrong_ranking_losses_are_refused(message: str, losses: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        RankingLoss(losses, **options)


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ValueError, match=r"softmax_loss: logits must have shape \[2, 3\], got \[2, 4\]"):
        softmax_loss(labels=torch.zeros(2, 3), logits=torch.zeros(2, 4))
    with pytest.raises(TypeError, match=r"labels must be floating point like the logits, got torch.int64"):
        softmax_loss(labels=torch.zeros(2, 3, dtype=torch.int64), logits=torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"ranking loss: weights must have shape \[2, 3\], got \[3\]"):
        softmax_loss(labels=torch.zeros(2, 3), logits=torch.zeros(2, 3), weights=torch.ones(3))
    with pytest.raises(ValueError, match=r"list_mle_loss: weights must have shape \[2, 1\], got \[2, 3\]"):
        list_mle_loss(labels=torch.zeros(2, 3), logits=torch.zeros(2, 3), weights=torch.ones(2, 3))
    with pytest.raises(ValueError, match="topn must be >= 1 or None, got 0"):
        DCGLambdaWeight(topn=0)
    with pytest.raises(ValueError, match=r"smooth_fraction must be in \[0, 1\], got 2"):
        DCGLambdaWeight(smooth_fraction=2)


@given(st.lists(st.sampled_from([-(2**63), -1, 0, 5, 2**63 - 1]), max_size=20))
def test_grouping_by_rank_id_keeps_every_row_once_and_in_order(ids: list[int]) -> None:
    groups = group_into_lists(torch.tensor(ids, dtype=torch.int64))
    places = groups.gather(torch.arange(len(ids), dtype=torch.float64), padding=-1.0)
    assert groups.rank_ids.tolist() == sorted(set(ids))
    for rank_id, row in zip(groups.rank_ids.tolist(), places.tolist(), strict=True):
        expected = [float(i) for i, each in enumerate(ids) if each == rank_id]
        assert row == expected + [-1.0] * (len(row) - len(expected))


def test_grouped_losses_are_those_of_the_lists() -> None:
    rank_ids = torch.tensor([9, 4, 9, 4, 4])
    labels, logits = torch.tensor([1.0, 0.0, 0.0, 2.0, 1.0]), torch.randn(5, requires_grad=True)
    groups = group_into_lists(rank_ids)
    loss = softmax_loss(labels=groups.gather(labels, padding=-1.0), logits=groups.gather(logits))
    apart = [softmax_loss(labels=labels[None, rank_ids == i], logits=logits[None, rank_ids == i]) for i in (4, 9)]
    torch.testing.assert_close(loss, torch.stack(apart).mean())
    torch.autograd.backward(loss)
    assert logits.grad is not None
    assert logits.grad.all()
