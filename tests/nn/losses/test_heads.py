"""Losses of clicks and of retrieval, against the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from monolith.nn import (
    SampleRate,
    batch_softmax_loss,
    get_sigmoid_loss_and_pred,
    get_softmax_loss_and_pred,
    in_batch_logits,
    inbatch_auc_loss,
)
from nn.layers.arrays import Array, array, assert_close, random_tensor, sigmoid, softmax

Z = random_tensor(6, seed=1)
Y = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0], dtype=torch.float64)


def cross_entropy(z: Array, y: Array) -> Array:
    return np.asarray(-(y * np.log(sigmoid(z)) + (1 - y) * np.log(1 - sigmoid(z))))


def test_sigmoid_loss_is_cross_entropy_and_the_prediction_its_probability() -> None:
    losses = cross_entropy(array(Z), array(Y))
    loss, pred = get_sigmoid_loss_and_pred(Z, Y)
    assert loss.item() == pytest.approx(losses.mean(), rel=1e-12)
    assert_close(pred, sigmoid(array(Z)))
    assert get_sigmoid_loss_and_pred(Z, Y, reduction="sum").loss.item() == pytest.approx(losses.sum(), rel=1e-12)
    assert_close(get_sigmoid_loss_and_pred(Z, Y, reduction="none").loss, losses)


def test_sampling_is_undone_in_the_loss_and_not_in_the_prediction() -> None:
    rate = torch.rand(6, dtype=torch.float64) * 0.9 + 0.1
    loss, pred = get_sigmoid_loss_and_pred(Z, Y, sample_rate=rate)
    assert loss.item() == pytest.approx(cross_entropy(array(Z) - np.log(array(rate)), array(Y)).mean(), rel=1e-12)
    assert_close(pred, sigmoid(array(Z)))
    biased = np.log(sigmoid(array(Z))) - math.log(0.25)
    loss, pred = get_sigmoid_loss_and_pred(Z, Y, sample_rate=SampleRate(0.25, sample_bias=True))
    assert loss.item() == pytest.approx(cross_entropy(biased, array(Y)).mean(), rel=1e-12)
    assert_close(pred, sigmoid(array(Z)))


def test_logit_clip_bounds_the_corrected_logit() -> None:
    loss = get_sigmoid_loss_and_pred(10 * Z, Y, logit_clip_threshold=0.1, reduction="none").loss
    assert_close(loss, cross_entropy(np.clip(array(10 * Z), -math.log(9), math.log(9)), array(Y)))
    with pytest.raises(ValueError, match=r"logit_clip_threshold must be in \(0, 0.5\), got 0.5"):
        get_sigmoid_loss_and_pred(Z, Y, logit_clip_threshold=0.5)


def test_weights_and_mask_select_what_counts() -> None:
    weights = torch.tensor([1.0, 2.0, 0.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    mask = torch.tensor([1, 1, 1, 0, 0, 1])
    losses = cross_entropy(array(Z), array(Y)) * array(weights) * mask.numpy()
    got = get_sigmoid_loss_and_pred(Z, Y, instance_weight=weights, mask=mask, reduction="sum").loss
    assert got.item() == pytest.approx(losses.sum(), rel=1e-12)
    got = get_sigmoid_loss_and_pred(Z, Y, instance_weight=weights, mask=mask).loss
    assert got.item() == pytest.approx(losses.sum() / 3, rel=1e-12)
    labels = torch.where(mask.bool(), Y, torch.nan)  # rows without a label
    logits = Z.clone().requires_grad_()
    loss = get_sigmoid_loss_and_pred(logits, labels, mask=mask).loss
    torch.autograd.backward(loss)
    assert torch.isfinite(loss)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[~mask.bool()].any()


@pytest.mark.parametrize("mask", [None, torch.zeros(6, dtype=torch.bool)])
def test_nothing_to_learn_from_is_a_loss_of_zero(mask: torch.Tensor | None) -> None:
    logits = (Z if mask is not None else Z[:0]).clone().requires_grad_()
    loss = get_sigmoid_loss_and_pred(logits, Y[: len(logits)], mask=mask).loss
    torch.autograd.backward(loss)
    assert loss.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_heads_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"label must have shape \[6\], got \[5\]"):
        get_sigmoid_loss_and_pred(Z, Y[:5])
    with pytest.raises(ValueError, match=r"label must have shape \[6, 1\], got \[6\]"):
        get_sigmoid_loss_and_pred(Z.unsqueeze(1), Y)
    with pytest.raises(ValueError, match=r"instance_weight must have shape \[6\], got \[1\]"):
        get_sigmoid_loss_and_pred(Z, Y, instance_weight=torch.ones(1))
    with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum', 'none', got 'avg'"):
        get_sigmoid_loss_and_pred(Z, Y, reduction="avg")  # type: ignore[arg-type]


def test_softmax_head_gives_a_loss_per_row_and_the_likeliest_class() -> None:
    logits = random_tensor(5, 3)
    classes = torch.tensor([0, 2, 1, 1, 0])
    expected = -np.log(softmax(array(logits))[np.arange(5), classes.numpy()])
    loss, pred = get_softmax_loss_and_pred(logits, classes)
    assert_close(loss, expected)
    assert pred.tolist() == array(logits).argmax(axis=1).tolist()
    shares = torch.softmax(random_tensor(5, 3, seed=4), dim=1)
    soft = -(array(shares) * np.log(softmax(array(logits)))).sum(axis=1)
    assert_close(get_softmax_loss_and_pred(logits, shares).loss, soft)
    assert get_softmax_loss_and_pred(logits, classes.int(), reduction="mean").loss.item() == pytest.approx(
        expected.mean()
    )
    assert list(get_softmax_loss_and_pred(logits[:0], classes[:0]).loss.shape) == [0]


def batch_softmax_reference(q: Array, i: Array, interval: Array, r: Array, temperature: float) -> Array:
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    i = i / np.linalg.norm(i, axis=1, keepdims=True)
    scores = q @ i.T / temperature - np.log(1 / np.maximum(interval, 1))
    return np.asarray(-r * np.log(softmax(scores)[np.arange(len(q)), np.arange(len(q))]))


def test_batch_softmax_loss_is_its_formula() -> None:
    q, i = random_tensor(5, 4, seed=1), random_tensor(5, 4, seed=2)
    interval = torch.tensor([0.0, 0.5, 3.0, 100.0, 1.0], dtype=torch.float64)
    r = torch.tensor([1.0, 2.0, 0.0, 0.5, 1.0], dtype=torch.float64)
    losses = batch_softmax_reference(array(q), array(i), array(interval), array(r), 0.2)
    got = batch_softmax_loss(q, i, interval, r, temperature=0.2, reduction="none")
    assert_close(got, losses)
    assert batch_softmax_loss(q, i, interval, r, temperature=0.2, reduction="sum").item() == pytest.approx(losses.sum())
    assert batch_softmax_loss(q, i, interval, r, temperature=0.2).item() == pytest.approx(losses.sum() / 4)
    scores = array(q) @ array(i).T
    plain = -np.log(np.diagonal(softmax(scores))).mean()
    assert batch_softmax_loss(q, i, normalize=False).item() == pytest.approx(plain)


def test_other_rows_with_the_positives_item_are_no_negatives() -> None:
    q, i = random_tensor(4, 3, seed=1), random_tensor(4, 3, seed=2)
    logits = in_batch_logits(q, i, item_ids=torch.tensor([7, 8, 7, 9]))
    hidden = torch.zeros(4, 4, dtype=torch.bool)
    hidden[0, 2] = hidden[2, 0] = True
    assert torch.equal(torch.isinf(logits), hidden)
    torch.testing.assert_close(logits[~hidden], in_batch_logits(q, i)[~hidden])


def test_batch_softmax_of_zero_vectors_and_of_nothing_is_finite() -> None:
    q = torch.zeros(3, 4, requires_grad=True)
    loss = batch_softmax_loss(q, torch.zeros(3, 4))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(math.log(3))
    assert q.grad is not None
    assert torch.isfinite(q.grad).all()
    assert batch_softmax_loss(torch.zeros(0, 4), torch.zeros(0, 4)).item() == 0


def test_no_gradient_reaches_the_interval() -> None:
    interval = torch.full((3,), 5.0, requires_grad=True)
    loss = batch_softmax_loss(torch.randn(3, 4, requires_grad=True), torch.randn(3, 4), interval)
    torch.autograd.backward(loss)
    assert interval.grad is None


def test_batch_softmax_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"item must have shape \[3, 4\], got \[2, 4\]"):
        batch_softmax_loss(torch.zeros(3, 4), torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"temperature must be > 0, got 0.0"):
        batch_softmax_loss(torch.zeros(3, 4), torch.zeros(3, 4), temperature=0.0)


def test_inbatch_auc_loss_goes_over_pairs() -> None:
    label = torch.tensor([1.0, 0.0, 2.0, -3.0, -10000.0, torch.nan], dtype=torch.float64)
    pairs = [(p, n) for p in (0, 2) for n in (1, 3)]
    ignored = Z.clone()
    ignored[4:] = torch.nan
    ignored.requires_grad_()
    torch.autograd.backward(inbatch_auc_loss(label, ignored))
    assert ignored.grad is not None
    assert torch.isfinite(ignored.grad).all()
    z = array(Z)
    losses = np.array([-math.log(sigmoid(z[p] - z[n])) for p, n in pairs])
    assert inbatch_auc_loss(label, Z).item() == pytest.approx(losses.mean())
    assert inbatch_auc_loss(label, Z, reduction="sum").item() == pytest.approx(losses.sum())
    matrix = array(inbatch_auc_loss(label, Z, reduction="none"))
    assert matrix[tuple(zip(*pairs, strict=True))].tolist() == pytest.approx(losses.tolist())
    assert np.count_nonzero(matrix) == len(pairs)


def test_neg_weight_scales_the_gradient_of_negatives_only() -> None:
    gradients = []
    for neg_weight in (1.0, 0.25):
        logit = Z.clone().requires_grad_()
        torch.autograd.backward(inbatch_auc_loss(Y, logit, neg_weight))
        assert logit.grad is not None
        gradients.append(logit.grad)
    assert inbatch_auc_loss(Y, Z, 0.25).item() == pytest.approx(inbatch_auc_loss(Y, Z).item())
    torch.testing.assert_close(gradients[1], gradients[0] * torch.where(Y > 0, 1.0, 0.25))


def test_minimising_the_auc_loss_raises_positives() -> None:
    logit = Z.clone().requires_grad_()
    torch.autograd.backward(inbatch_auc_loss(Y, logit))
    assert logit.grad is not None
    assert (logit.grad[Y > 0] < 0).all()
    assert (logit.grad[Y <= 0] > 0).all()


@pytest.mark.parametrize("label", [torch.ones(4), torch.zeros(4), torch.full((4,), -10000.0), torch.zeros(0)])
def test_no_pairs_is_a_loss_of_zero(label: torch.Tensor) -> None:
    assert inbatch_auc_loss(label, torch.randn(len(label))).item() == 0


@pytest.mark.slow
def test_losses_compile_as_one_graph() -> None:
    torch.compiler.reset()

    def both(z: torch.Tensor, y: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        clicks = get_sigmoid_loss_and_pred(z, y, sample_rate=0.1, mask=y > 0).loss
        return clicks + inbatch_auc_loss(y, z) + batch_softmax_loss(q, q, torch.ones_like(z))

    arguments = (Z, Y, random_tensor(6, 3))
    compiled = torch.compile(both, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*arguments), both(*arguments))
