"""Feature crossing against the formulas, written with loops over features."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from monolith.nn import (
    AFM,
    CAN,
    CIN,
    DCN,
    FFM,
    FM,
    AllInt,
    AutoInt,
    AvgPooling,
    BiInteraction,
    CDot,
    FieldWeightedFM,
    GroupInt,
    InnerProduct,
    MaxPooling,
    MultiHeadAttention,
    SeNet,
    SumPooling,
    iRazor,
    merge_tensor_list,
)
from nn.layers.arrays import Array, array, assert_close, linear, mlp, random_tensor, randomized, relu, sigmoid, softmax

B, N, K = 3, 4, 5


@pytest.fixture
def features() -> Tensor:
    return random_tensor(B, N, K)


def test_fm_and_its_relatives_sum_over_pairs(features: Tensor) -> None:
    x = array(features)
    pairs = [x[:, i] * x[:, j] for i, j in combinations(range(N), 2)]
    dots = np.stack([pair.sum(axis=1) for pair in pairs], axis=1)
    assert_close(BiInteraction()(features), np.sum(pairs, axis=0))
    assert_close(FM()(features), dots.sum(axis=1, keepdims=True))
    assert_close(InnerProduct()(features), dots)
    weighted = randomized(FieldWeightedFM(N))
    assert_close(weighted(features), (dots * array(weighted.weight)).sum(axis=1, keepdims=True))


def test_field_weighted_fm_starts_as_fm(features: Tensor) -> None:
    torch.testing.assert_close(FieldWeightedFM(N).double()(features), FM()(features))


def test_afm_weighs_pairs_by_softmax(features: Tensor) -> None:
    layer = randomized(AFM(K, 6))
    x = array(features)
    pairs = np.stack([x[:, i] * x[:, j] for i, j in combinations(range(N), 2)], axis=1)
    scores = relu(linear(layer.hidden, pairs)) @ array(layer.score.weight)[0]
    assert_close(layer(features), (softmax(scores)[..., None] * pairs).sum(axis=1))


@pytest.mark.parametrize("layer", [FM(), BiInteraction(), InnerProduct(), AFM(K, 2)], ids=lambda m: type(m).__name__)
def test_one_feature_has_no_pairs(layer: torch.nn.Module) -> None:
    result = layer.double()(random_tensor(B, 1, K))
    assert result.shape[0] == B
    assert not result.any()


def test_group_interactions_are_left_major() -> None:
    left = [random_tensor(B, K, seed=seed) for seed in range(2)]
    right = [random_tensor(B, K, seed=10 + seed) for seed in range(3)]
    products = [array(one) * array(other) for one in left for other in right]
    assert_close(GroupInt("dot")(left, right), np.stack([each.sum(axis=1) for each in products], axis=1))
    assert_close(GroupInt()(left, right), np.concatenate(products, axis=1))
    assert_close(GroupInt()(torch.stack(left, dim=1), right), np.concatenate(products, axis=1))
    layer = randomized(FFM(attention_units=[4, 1], dim=K))
    assert layer.attention is not None
    weighted = [each * mlp(layer.attention, each) for each in products]
    assert_close(layer(left, right), np.concatenate(weighted, axis=1))


def test_wrong_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="attention needs interaction_type 'multiply', got 'dot'"):
        GroupInt("dot", attention_units=[1], dim=3)
    with pytest.raises(ValueError, match="attention needs dim"):
        GroupInt(attention_units=[1])
    with pytest.raises(ValueError, match=r"attention_units must end in 1, the weight of one element, got \[4, 2\]"):
        GroupInt(attention_units=[4, 2], dim=3)
    with pytest.raises(ValueError, match=r"must agree in batch and dim, got \[2, 1, 3\] and \[2, 1, 4\]"):
        GroupInt()([torch.zeros(2, 3)], [torch.zeros(2, 4)])
    with pytest.raises(ValueError, match=r"must have the shape of the first, \[2, 3\], got \[2, 4\] at 1"):
        GroupInt()([torch.zeros(2, 3), torch.zeros(2, 4)], [torch.zeros(2, 3)])
    with pytest.raises(ValueError, match="needs at least one tensor, got none"):
        GroupInt()([], [torch.zeros(2, 3)])


@pytest.mark.parametrize("use_bias", [True, False])
def test_all_int_is_its_formula(features: Tensor, use_bias: bool) -> None:
    layer = randomized(AllInt(N, 2, use_bias=use_bias, out_type="stack"))
    bias = 0.0 if layer.bias is None else array(layer.bias)
    expected = [x @ (x.T @ array(layer.kernel) + bias) for x in array(features)]
    assert_close(layer(features), np.stack(expected))
    layer.out_type = "concat"
    assert_close(layer(features), np.stack(expected).reshape(B, -1))


def test_cdot_is_its_formula(features: Tensor) -> None:
    layer = randomized(CDot(N, K, project_dim=2, units=[7]))
    expected = []
    for x in array(features):
        m = mlp(layer.tower, (x.T @ array(layer.projection)).reshape(-1))
        expected.append(np.concatenate([(x @ m.reshape(K, 2)).reshape(-1), m]))
    assert_close(layer(features), np.stack(expected))
    assert layer.output_dim == (N + K) * 2


def can_reference(user: Array, item: Array, num_layers: int) -> Array:
    dim, h, place = user.shape[-1], user, 0
    for _ in range(num_layers):
        weight = item[place : place + dim * dim].reshape(dim, dim)
        bias = item[place + dim * dim : place + dim * dim + dim]
        place += dim * dim + dim
        h = np.tanh(h @ weight + bias)
    return h


@pytest.mark.parametrize("shape", [(2,), (4, 2)])
def test_can_runs_the_users_vectors_through_the_items_network(shape: tuple[int, ...]) -> None:
    user, item = random_tensor(B, *shape, seed=1), random_tensor(B, 3 * 6, seed=2)
    expected = np.stack([can_reference(u, i, 3) for u, i in zip(array(user), array(item), strict=True)])
    assert_close(CAN(3, activation="tanh")(user, item), expected)


@pytest.mark.parametrize("shape", [(5, 2), (3, 5, 2)])
def test_can_sums_a_sequence_over_the_steps_that_count(shape: tuple[int, ...]) -> None:
    user, item = random_tensor(B, *shape, seed=1), random_tensor(B, 2 * 6, seed=2)
    layer = CAN(2, activation="tanh", is_sequence=True)
    steps = np.stack([can_reference(u, i, 2) for u, i in zip(array(user), array(item), strict=True)])
    assert_close(layer(user, item), steps.sum(axis=-2))
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    counts = mask.numpy().reshape(B, *[1] * (len(shape) - 2), 5, 1)
    assert_close(layer(user, item, mask), (steps * counts).sum(axis=-2))
    assert_close(layer(user, item, mask.bool()), (steps * counts).sum(axis=-2))


def test_can_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"CAN: item must have shape \[2, 24\], got \[2, 23\]"):
        CAN(2)(torch.zeros(2, 3), torch.zeros(2, 23))
    with pytest.raises(ValueError, match=r"CAN: user must have 3 or 4 dims, got shape \[2, 3\]"):
        CAN(2, is_sequence=True)(torch.zeros(2, 3), torch.zeros(2, 24))
    with pytest.raises(TypeError, match=r"mask must be bool or 0/1 integers \(1 counts\), got torch.float32"):
        CAN(2, is_sequence=True)(torch.zeros(2, 4, 3), torch.zeros(2, 24), torch.ones(2, 4))


def test_dcn_vector_and_matrix_are_their_formulas() -> None:
    x0 = random_tensor(B, K)
    vector = randomized(DCN(K, 3, kind="vector"))
    x = array(x0)
    for layer in vector.layers:
        x = array(x0) * (x @ array(layer.weight)) + array(layer.bias) + x
    assert_close(vector(x0), x)
    matrix = randomized(DCN(K, 3))
    x = array(x0)
    for layer in matrix.layers:
        x = array(x0) * (x @ array(layer.weight) + array(layer.bias)) + x
    assert_close(matrix(x0), x)


def test_dcn_low_rank_is_a_matrix_of_low_rank() -> None:
    low, full = randomized(DCN(K, 1, kind="low_rank", rank=2)), DCN(K, 1).double()
    with torch.no_grad():
        full.layers[0].weight.copy_(low.layers[0].v @ low.layers[0].u.T)  # type: ignore[operator]
        full.layers[0].bias.copy_(low.layers[0].bias)  # type: ignore[operator, arg-type]
    x = random_tensor(B, K)
    torch.testing.assert_close(low(x), full(x))


def test_dcn_mixed_gates_its_experts() -> None:
    model = randomized(DCN(K, 2, kind="mixed", rank=2, num_experts=3))
    x0 = array(random_tensor(B, K))
    x = x0
    for layer in model.layers:
        v, c, u = array(layer.v), array(layer.c), array(layer.u)
        gates = softmax(x @ array(layer.gate))
        assert not np.allclose(gates, gates[:, :1])  # the original's were all 1
        crossed = np.zeros_like(x)
        for expert in range(3):
            inner = np.tanh(np.tanh(x @ v[expert]) @ c[expert])
            crossed += gates[:, expert : expert + 1] * x0 * (inner @ u[expert].T + array(layer.bias))
        x = crossed + x
    assert_close(model(torch.from_numpy(x0)), x)


def test_dcn_drops_in_training_only() -> None:
    torch.manual_seed(0)
    model = DCN(100, 1, dropout=0.5)
    x = torch.ones(10, 100)
    assert 0.3 < (model(x) == 0).float().mean() < 0.7
    assert not (model.eval()(x) == 0).any()


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("rank belongs to kinds 'low_rank' and 'mixed', got rank=None with kind='mixed'", {"kind": "mixed"}),
        ("rank belongs to kinds 'low_rank' and 'mixed', got rank=2 with kind='matrix'", {"rank": 2}),
        ("num_experts belongs to kind 'mixed', got 2 with kind='matrix'", {"num_experts": 2}),
        ("DCN: rank must be >= 1, got 0", {"kind": "low_rank", "rank": 0}),
        ("DCN: kind must be one of .*, got 'matrices'; did you mean 'matrix'", {"kind": "matrices"}),
        (r"DCN: dropout must be in \[0, 1\), got 1.0", {"dropout": 1.0}),
    ],
)
def test_wrong_cross_networks_are_refused(message: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=message):
        DCN(4, 1, **options)  # type: ignore[arg-type]


def test_cin_crosses_complete_embeddings(features: Tensor) -> None:
    units = [3, 2]
    layer = randomized(CIN(N, units, activation="tanh"))
    x0 = array(features)
    x, sums = x0, []
    for index, size in enumerate(units):
        weight, bias = array(layer.maps[index].weight), array(layer.maps[index].bias)
        maps = np.zeros((B, size, K))
        for h in range(size):
            for i in range(x.shape[1]):
                for j in range(N):
                    maps[:, h] += weight[h, i * N + j] * x[:, i] * x0[:, j]
            maps[:, h] += bias[h]
        x = np.tanh(maps) if index == 0 else maps
        sums.append(x.sum(axis=2))
    assert_close(layer(features), np.concatenate(sums, axis=1))


def test_auto_int_without_heads_is_its_formula(features: Tensor) -> None:
    x = array(features)
    for _ in range(2):
        x = softmax(x @ x.transpose(0, 2, 1)) @ x
    assert_close(AutoInt(2)(features), x.reshape(B, -1))
    assert_close(AutoInt(2, out_type="stack")(features), x)


def test_auto_int_with_heads_is_its_formula() -> None:
    layer = randomized(AutoInt(1, dim=4, num_heads=2, out_type="stack"))
    features = random_tensor(B, N, 4)
    attention, residual = layer.attention[0], layer.residual[0]
    assert isinstance(attention, MultiHeadAttention)
    x = array(features)
    q, k, v = (x @ array(each.weight).T for each in (attention.query, attention.key, attention.value))
    heads = [
        softmax(q[..., s] @ k[..., s].transpose(0, 2, 1) / np.sqrt(2)) @ v[..., s] for s in (slice(0, 2), slice(2, 4))
    ]
    mixed = np.concatenate(heads, axis=2) @ array(attention.output.weight).T
    assert_close(layer(features), relu(mixed + x @ array(residual.weight).T))
    with pytest.raises(ValueError, match="AutoInt: num_heads needs dim"):
        AutoInt(1, num_heads=2)


def test_senet_scales_features_by_their_squeezed_means(features: Tensor) -> None:
    layer = randomized(SeNet(N, 3, out_type="stack"))
    x = array(features)
    weights = sigmoid(mlp(layer.tower, x.mean(axis=2)))
    assert_close(layer(features), x * weights[..., None])


def test_senet_takes_features_of_different_sizes() -> None:
    layer = randomized(SeNet(3, 2))
    features = [random_tensor(B, dim, seed=dim) for dim in (1, 4, 2)]
    weights = sigmoid(mlp(layer.tower, np.stack([array(each).mean(axis=1) for each in features], axis=1)))
    expected = [array(each) * weights[:, index : index + 1] for index, each in enumerate(features)]
    assert_close(layer(features), np.concatenate(expected, axis=1))
    layer.out_type = None
    assert [list(each.shape) for each in layer(features)] == [[B, 1], [B, 4], [B, 2]]
    with pytest.raises(ValueError, match="SeNet: expected 3 features, got 2"):
        layer(features[:2])


def test_irazor_masks_groups_of_dims() -> None:
    weights = [1.0, 2.0, 0.5, 0.0]
    layer = randomized(iRazor(N, [0, 1, 3, 5], temperature=0.5, feature_weight=weights, out_type="stack"))
    p = softmax(array(layer.logits) / 0.5)
    masks = np.stack([p[:, 1], p[:, 2], p[:, 2], p[:, 3], p[:, 3]], axis=1)
    features = random_tensor(B, N, K)
    assert_close(layer(features), array(features) * masks)
    assert_close(layer.probabilities(), p)
    assert layer.auxiliary_loss().item() == pytest.approx((np.array(weights) * masks.sum(axis=1)).sum())


def test_irazor_can_drop_a_feature() -> None:
    layer = iRazor(2, [0, 2, 4])
    with torch.no_grad():
        layer.logits[0, 0] = 10.0
    kept = layer.masks()
    assert kept[0].abs().max() < 1e-6
    assert kept[1].tolist() == pytest.approx([1 / 3] * 4)
    assert layer.auxiliary_loss().item() == 0


@pytest.mark.parametrize("nas_space", [[], [0], [1, 4], [0, 3, 3], [0, 4, 2]])
def test_irazor_refuses_bounds_that_do_not_grow_from_zero(nas_space: list[int]) -> None:
    with pytest.raises(ValueError, match="nas_space must grow from 0 to the embedding dim"):
        iRazor(2, nas_space)


def test_pooling_over_a_list() -> None:
    tensors = [random_tensor(B, K, seed=seed) for seed in range(3)]
    stacked = np.stack([array(each) for each in tensors])
    assert_close(SumPooling()(tensors), stacked.sum(axis=0))
    assert_close(AvgPooling()(tensors), stacked.mean(axis=0))
    assert_close(MaxPooling()(tensors), stacked.max(axis=0))
    with pytest.raises(ValueError, match="SumPooling: needs at least one tensor, got none"):
        SumPooling()([])


def test_merge_tensor_list() -> None:
    tensors = [random_tensor(B, K, seed=seed) for seed in range(2)]
    stacked = torch.stack(tensors, dim=1)
    for given in (tensors, stacked):
        assert_close(merge_tensor_list(given, "concat"), np.concatenate([array(each) for each in tensors], axis=1))
        assert_close(merge_tensor_list(given, "stack"), array(stacked))
        apart = merge_tensor_list(given, None)
        assert isinstance(apart, list)
        torch.testing.assert_close(apart, tensors)
    with pytest.raises(ValueError, match="merge_type must be one of 'concat', 'stack', None, got 'add'"):
        merge_tensor_list(tensors, "add")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"tensors must have shape \[B, n, k\], got \[3, 5\]"):
        merge_tensor_list(tensors[0])


@pytest.mark.parametrize(
    "layer",
    [FM(), AFM(K, 2), AllInt(N, 2), CDot(N, K, project_dim=2, units=[]), CIN(N, [2]), AutoInt(), iRazor(N, [0, K])],
    ids=lambda layer: type(layer).__name__,
)
def test_features_of_another_shape_are_refused(layer: torch.nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"{type(layer).__name__}|BiInteraction: features must have shape"):
        layer(torch.zeros(2, 3))
