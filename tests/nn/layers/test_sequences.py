"""Attention and recurrence over sequences: formulas, masks, and what is behind a mask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from monolith.nn import (
    DIEN,
    DIN,
    DMR_U2I,
    AGRUCell,
    AttentionPooling,
    MultiHeadAttention,
    masked_softmax,
    rnn_with_attention,
)
from nn.layers.arrays import Array, array, assert_close, dense, linear, mlp, random_tensor, randomized, sigmoid, softmax

B, T, D = 4, 5, 3
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 1, 1]], dtype=torch.bool)


def masked_weights(logits: Array, counts: Array) -> Array:
    """Softmax over the counted places of one row, zeros elsewhere."""
    weights = np.zeros_like(logits)
    if counts.any():
        weights[counts] = softmax(logits[counts])
    return weights


def test_masked_softmax_is_softmax_over_what_counts() -> None:
    logits = random_tensor(B, T)
    expected = [masked_weights(row, counts) for row, counts in zip(array(logits), MASK.numpy(), strict=True)]
    assert_close(masked_softmax(logits, MASK), np.stack(expected))
    assert_close(masked_softmax(logits.T, MASK.T, dim=0), np.stack(expected).T)
    assert_close(masked_softmax(logits), softmax(array(logits)))
    assert list(masked_softmax(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)).shape) == [2, 0]


def test_masked_softmax_of_nothing_has_no_gradient() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    torch.autograd.backward(masked_softmax(logits, torch.zeros(2, 3, dtype=torch.bool)).sum())
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize("scaled", [False, True])
def test_din_weighs_the_history_by_the_candidate(scaled: bool) -> None:
    layer = randomized(DIN(D, [6, 1], scaled=scaled))
    query, keys = random_tensor(B, D, seed=1), random_tensor(B, T, D, seed=2)
    q, k = array(query)[:, None, :].repeat(T, axis=1), array(keys)
    weights = mlp(layer.tower, np.concatenate([q, k, q - k, q * k], axis=2))
    if scaled:
        weights = weights / np.sqrt(D)
    assert_close(layer(query, keys), (weights * k).sum(axis=1))
    weights = weights * MASK.numpy()[..., None]
    assert_close(layer(query, keys, MASK), (weights * k).sum(axis=1))
    layer.mode = None
    assert_close(layer(query, keys, MASK), weights * k)


def test_din_refuses_what_does_not_fit() -> None:
    layer = DIN(3, [1])
    with pytest.raises(ValueError, match=r"DIN: units must end in 1, the weight of one element, got \[4\]"):
        DIN(3, [4])
    with pytest.raises(ValueError, match=r"DIN: query must have shape \[B, 3\], got \[2, 4\]"):
        layer(torch.zeros(2, 4), torch.zeros(2, 5, 3))
    with pytest.raises(ValueError, match=r"DIN: keys must have shape \[2, T, 3\], got \[1, 5, 3\]"):
        layer(torch.zeros(2, 3), torch.zeros(1, 5, 3))
    with pytest.raises(ValueError, match=r"DIN: mask must have shape \[2, 5\], got \[2, 4\]"):
        layer(torch.zeros(2, 3), torch.zeros(2, 5, 3), torch.ones(2, 4, dtype=torch.bool))


def step_reference(cell: AGRUCell, x: Array, h: Array, a: float | None) -> Array:
    """One step for one row."""
    r, u = np.split(sigmoid(linear(cell.gates, np.concatenate([x, h]))), 2)
    c = np.tanh(linear(cell.candidate, np.concatenate([x, r * h])))
    if a is None:
        return np.asarray((1 - u) * h + u * c)
    if cell.att_type == "AGRU":
        return np.asarray((1 - a) * h + a * c)
    u = (1 - a) * u
    return np.asarray(u * h + (1 - u) * c)


def rnn_reference(cell: AGRUCell, x: Array, scores: Array | None, counts: Array) -> Array:
    """All states of one row, ``[T, units]``."""
    h, states = np.zeros(cell.units), []
    for t in range(len(x)):
        if counts[t]:
            h = step_reference(cell, x[t], h, None if scores is None else scores[t])
        states.append(h)
    return np.stack(states)


@pytest.mark.parametrize("att_type", ["AGRU", "AUGRU"])
@pytest.mark.parametrize("has_scores", [True, False])
def test_attention_gru_is_its_formula(att_type: str, has_scores: bool) -> None:
    cell = randomized(AGRUCell(D, 4, att_type=att_type))  # type: ignore[arg-type]
    x = random_tensor(B, T, D)
    scores = torch.rand(B, T, dtype=torch.float64) if has_scores else None
    states, last = rnn_with_attention(cell, x, scores, mask=MASK)
    expected = np.stack(
        [
            rnn_reference(cell, array(x)[row], None if scores is None else array(scores)[row], MASK.numpy()[row])
            for row in range(B)
        ]
    )
    assert_close(states, expected)
    assert_close(last, expected[:, -1])


def test_the_two_kinds_of_attention_differ() -> None:
    cells = [randomized(AGRUCell(D, 4, att_type=att_type)) for att_type in ("AGRU", "AUGRU")]
    x, scores = random_tensor(B, T, D), torch.rand(B, T, dtype=torch.float64)
    first, second = (rnn_with_attention(cell, x, scores)[1] for cell in cells)
    assert not torch.allclose(first, second)


def test_recurrence_can_be_continued() -> None:
    cell = randomized(AGRUCell(D, 4))
    x = random_tensor(B, T, D)
    states, last = rnn_with_attention(cell, x)
    _, middle = rnn_with_attention(cell, x[:, :2])
    rest, end = rnn_with_attention(cell, x[:, 2:], initial_state=middle)
    torch.testing.assert_close(rest, states[:, 2:])
    torch.testing.assert_close(end, last)


@pytest.mark.parametrize("att_type", ["AGRU", "AUGRU"])
def test_dien_is_its_formula(att_type: str) -> None:
    layer = randomized(DIEN(D, 4, query_dim=2, att_type=att_type))  # type: ignore[arg-type]
    query, keys = random_tensor(B, 2, seed=1), random_tensor(B, T, D, seed=2)
    expected = []
    for row in range(B):
        counts = MASK.numpy()[row]
        interests = rnn_reference(layer.extractor, array(keys)[row], None, counts)
        logits = interests @ (array(layer.weight) @ array(query)[row])
        expected.append(rnn_reference(layer.evolution, interests, masked_weights(logits, counts), counts)[-1])
    assert_close(layer(query, keys, MASK), np.stack(expected))


def test_dmr_is_its_formula() -> None:
    layer = randomized(DMR_U2I(2, D, max_length=7, cmp_dim=4, activation="tanh"))
    item, history = random_tensor(B, 2, seed=1), random_tensor(B, T, D, seed=2)
    pooled = []
    for row in range(B):
        x = array(history)[row]
        hidden = array(layer.positions)[:T] + x @ array(layer.embedding) + array(layer.bias)
        pooled.append(masked_weights(hidden @ array(layer.z), MASK.numpy()[row]) @ x)
    assert_close(layer(item, history, MASK), np.tanh(dense(layer.dense, np.stack(pooled))) * array(item))
    with pytest.raises(ValueError, match="sequence must have at most 7 steps, got 8; cut it first"):
        layer(item, random_tensor(B, 8, D))


def test_attention_pooling_is_its_formula() -> None:
    layer = randomized(AttentionPooling(D, 6))
    x = random_tensor(B, T, D)
    scores = np.tanh(linear(layer.hidden, array(x))) @ array(layer.score.weight)[0]
    weights = [masked_weights(row, counts) for row, counts in zip(scores, MASK.numpy(), strict=True)]
    assert_close(layer(x, MASK), np.einsum("bt,btd->bd", np.stack(weights), array(x)))


@pytest.mark.parametrize("is_causal", [False, True])
def test_multi_head_attention_is_its_formula(is_causal: bool) -> None:
    layer = randomized(MultiHeadAttention(6, 3, is_causal=is_causal))
    x = random_tensor(B, T, 6)
    q, k, v = (array(x) @ array(each.weight).T for each in (layer.query, layer.key, layer.value))
    result = np.zeros((B, T, 6))
    for row in range(B):
        for place in range(T):
            if not MASK[row, place]:
                continue  # a masked step puts out zeros
            counts = MASK.numpy()[row] & ((np.arange(T) <= place) | (not is_causal))
            for head in (slice(0, 2), slice(2, 4), slice(4, 6)):
                weights = masked_weights(k[row, :, head] @ q[row, place, head] / np.sqrt(2), counts)
                result[row, place, head] = weights @ v[row, :, head]
    assert_close(layer(x, mask=MASK), result @ array(layer.output.weight).T)


def test_multi_head_attention_agrees_with_torch() -> None:
    ours, theirs = MultiHeadAttention(6, 2).double(), nn.MultiheadAttention(6, 2, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.out_proj.weight.copy_(ours.output.weight)
    queries, context, mask = random_tensor(B, 2, 6, seed=1), random_tensor(B, T, 6, seed=2), MASK.clone()
    mask[2] = True  # torch has no answer where nothing counts
    expected, _ = theirs(queries, context, context, key_padding_mask=~mask)
    torch.testing.assert_close(ours(queries, context, mask), expected)


def test_wrong_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="num_heads must divide dim 6, got 4"):
        MultiHeadAttention(6, 4)
    with pytest.raises(ValueError, match="is_causal needs as many queries as steps, got 2 and 5"):
        MultiHeadAttention(6, 2, is_causal=True)(torch.zeros(1, 2, 6), torch.zeros(1, 5, 6))


Call = Callable[[Tensor, Tensor | None], Tensor]


def sequence_layers() -> dict[str, tuple[nn.Module, Call]]:
    """Layers over ``[B, T, 3]`` as functions of sequence and mask."""
    query = random_tensor(B, D, seed=9)
    din, dien = randomized(DIN(D, [4, 1])), randomized(DIEN(D, D))
    dmr, pooling = randomized(DMR_U2I(D, D, max_length=9, cmp_dim=2)), randomized(AttentionPooling(D))
    heads, cell = randomized(MultiHeadAttention(D, 1)), randomized(AGRUCell(D, 4))
    return {
        "DIN": (din, lambda x, mask: din(query, x, mask)),
        "DIEN": (dien, lambda x, mask: dien(query, x, mask)),
        "DMR_U2I": (dmr, lambda x, mask: dmr(query, x, mask)),
        "AttentionPooling": (pooling, pooling),
        "MultiHeadAttention": (heads, lambda x, mask: heads(x, None, mask).sum(dim=1)),
        "rnn_with_attention": (cell, lambda x, mask: rnn_with_attention(cell, x, mask=mask)[1]),
    }


@pytest.mark.parametrize("name", list(sequence_layers()))
def test_masked_positions_are_ignored_even_if_they_are_nan(name: str) -> None:
    layer, call = sequence_layers()[name]
    clean = random_tensor(B, T, D, seed=2)
    dirty = clean.masked_fill(~MASK.unsqueeze(2), torch.nan).requires_grad_()
    result = call(dirty, MASK)
    torch.testing.assert_close(result, call(clean, MASK))
    torch.autograd.backward(result.square().sum())
    assert dirty.grad is not None
    assert not dirty.grad[~MASK].any()
    for parameter in layer.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize("name", list(sequence_layers()))
def test_a_history_without_steps_gives_zeros(name: str) -> None:
    layer, call = sequence_layers()[name]
    expected = torch.zeros_like(call(random_tensor(B, T, D), None))
    if name == "DMR_U2I":
        assert isinstance(layer, DMR_U2I)
        nn.init.zeros_(layer.dense.bias)  # type: ignore[arg-type]
    torch.testing.assert_close(call(random_tensor(B, 0, D), None), expected)
    torch.testing.assert_close(call(random_tensor(B, 0, D), MASK[:, :0]), expected)
    torch.testing.assert_close(call(random_tensor(B, T, D), torch.zeros_like(MASK)), expected)


@pytest.mark.parametrize("name", [name for name in sequence_layers() if name != "DMR_U2I"])
def test_where_the_padding_stands_does_not_matter(name: str) -> None:
    _, call = sequence_layers()[name]
    x = random_tensor(B, 3, D)
    padding = random_tensor(B, 2, D, seed=5)
    counts, pads = torch.ones(B, 3, dtype=torch.bool), torch.zeros(B, 2, dtype=torch.bool)
    expected = call(x, None)
    torch.testing.assert_close(call(torch.cat([x, padding], dim=1), torch.cat([counts, pads], dim=1)), expected)
    torch.testing.assert_close(call(torch.cat([padding, x], dim=1), torch.cat([pads, counts], dim=1)), expected)
