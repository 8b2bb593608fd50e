"""Dense layers, towers, their activations and their insight, against the formulas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from monolith.nn import (
    ACTIVATION_NAMES,
    MLP,
    AddBias,
    BatchNorm,
    Dense,
    KernelNorm,
    LayerNorm,
    LHUCTower,
    LogitCorrection,
    activation_layer,
    correct_logits,
    feature_insight,
)
from nn.layers.arrays import Array, array, assert_close, dense, mlp, random_tensor, randomized, relu, sigmoid

ERF = np.vectorize(math.erf)

ACTIVATIONS: dict[str, Callable[[Array], Any]] = {
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "exponential": np.exp,
    "gelu": lambda x: x * 0.5 * (1 + ERF(x / math.sqrt(2))),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "linear": lambda x: x,
    "prelu": lambda x: np.where(x > 0, x, 0.25 * x),
    "relu": relu,
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "sigmoid": sigmoid,
    "sigmoid2": lambda x: 2 * sigmoid(x),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "swish": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "thresholded_relu": lambda x: np.where(x > 1, x, 0.0),
}


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_activation_is_its_formula(name: str) -> None:
    x = random_tensor(50, 4)
    assert_close(activation_layer(name).double()(x), np.asarray(ACTIVATIONS[name](array(x))))


def test_every_use_of_an_activation_is_a_fresh_layer() -> None:
    given = nn.PReLU()
    first, second = activation_layer(given), activation_layer(given)
    assert first is not second
    assert first is not given
    tower = MLP(3, [4, 4, 1], activations=given)
    learned = [module.weight for module in tower.modules() if isinstance(module, nn.PReLU)]
    assert len({id(weight) for weight in learned}) == 2


def test_activation_may_be_a_class_or_a_function() -> None:
    x = random_tensor(5)
    assert_close(activation_layer(nn.Tanh)(x), np.tanh(array(x)))
    assert_close(activation_layer(torch.sin)(x), np.sin(array(x)))


def test_unknown_activation_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"got 'sigmoid_2'; did you mean 'sigmoid2'\?"):
        activation_layer("sigmoid_2")
    with pytest.raises(TypeError, match="must be a name, a module, a function or None, got 3"):
        activation_layer(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel_norm", [None, "fixed", "trainable"])
@pytest.mark.parametrize("use_bias", [True, False])
def test_dense_is_its_formula(kernel_norm: KernelNorm, use_bias: bool) -> None:
    layer = randomized(Dense(5, 3, activation="tanh", use_bias=use_bias, kernel_norm=kernel_norm))
    x = random_tensor(2, 4, 5)
    assert_close(layer(x), np.tanh(dense(layer, array(x))))


def test_trainable_norm_starts_where_the_plain_layer_starts() -> None:
    torch.manual_seed(0)
    normed = Dense(5, 3, kernel_norm="trainable")
    x = torch.randn(4, 5)
    torch.testing.assert_close(normed(x), x @ normed.weight.T)
    with torch.no_grad():
        normed.weight.mul_(7.0)
    torch.testing.assert_close(normed(x), x @ normed.weight.T / 7.0)


def test_a_column_of_zeros_is_normalised_to_zeros() -> None:
    layer = Dense(3, 2, kernel_norm="trainable", initializer=nn.init.zeros_)
    layer(torch.ones(1, 3)).sum().backward()
    assert layer.weight.grad is not None
    assert torch.isfinite(layer.weight.grad).all()
    assert not layer(torch.ones(1, 3)).any()


def test_dead_units_are_counted_in_training_only() -> None:
    layer = Dense(2, 3, activation="relu", use_bias=False, counts_dead_units=True)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-1.0, 1.0]]))
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # unit 1 is off for both rows, unit 2 for one of them
    assert layer.dead_units is not None
    layer.eval()(x)
    assert layer.dead_units.item() == 0
    layer.train()
    layer(x)
    layer(x)
    assert layer.dead_units.item() == pytest.approx(0.01 + 0.99 * 0.01)


def test_mlp_is_its_formula() -> None:
    tower = randomized(MLP(5, [4, 3, 2]))
    x = random_tensor(6, 5)
    assert_close(tower(x), mlp(tower, array(x)))


def test_mlp_with_batch_norm_normalises_input_and_hidden_layers_before_their_activation() -> None:
    tower = randomized(MLP(3, [4, 2], batch_norm=True))
    x = random_tensor(7, 3)

    def norm(layer: BatchNorm, rows: Array) -> Array:
        normal = (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-6)
        result: Array = normal * array(layer.gamma) + array(layer.beta)
        return result

    first, second = tower.blocks
    hidden = relu(norm(first[1], dense(first[0], norm(tower.input_norm, array(x)))))  # type: ignore[index, arg-type]
    assert_close(tower(x), dense(second[0], hidden))  # type: ignore[index]


@pytest.mark.parametrize(
    ("activations", "expected"),
    [
        (None, ["ReLU", "ReLU", "Identity"]),
        ("tanh", ["Tanh", "Tanh", "Identity"]),
        (["tanh", None, "sigmoid"], ["Tanh", "Identity", "Sigmoid"]),
    ],
)
def test_activations_of_mlp(activations: str | list[str | None] | None, expected: list[str]) -> None:
    tower = MLP(2, [3, 3, 3], activations=activations)
    assert [type(block[-1]).__name__ for block in tower.blocks] == expected  # type: ignore[index]


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("MLP: dims must have at least one size, got none", lambda: MLP(3, [])),
        (r"MLP: dims\[1\] must be >= 1, got 0", lambda: MLP(3, [4, 0])),
        ("MLP: input_dim must be >= 1, got -1", lambda: MLP(-1, [4])),
        ("MLP: activations must name one for each of 2 layers, got 1", lambda: MLP(3, [4, 1], activations=["relu"])),
        (
            "Dense: kernel_norm must be one of None, 'fixed', 'trainable', got 'on'",
            lambda: MLP(3, [4], kernel_norm="on"),  # type: ignore[arg-type]
        ),
        (r"MLP: input must have shape \[..., 3\], got \[2, 4\]", lambda: MLP(3, [1])(torch.zeros(2, 4))),
        (r"MLP: input must have shape \[..., 3\], got \[\]", lambda: MLP(3, [1])(torch.zeros(()))),
    ],
)
def test_wrong_towers_are_refused(message: str, make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_non_integer_sizes_are_rejected() -> None:
    with pytest.raises(TypeError, match=r"Dense: units must be an integer, got 2\.0"):
        Dense(3, 2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("lhuc_dims", [[], [6], [[6], [5, 2]]])
def test_lhuc_tower_is_its_formula(lhuc_dims: list[int] | list[list[int]]) -> None:
    tower = randomized(LHUCTower(4, [3, 2], lhuc_dims=lhuc_dims, lhuc_input_dim=5))
    x, g = random_tensor(6, 4, seed=1), random_tensor(6, 5, seed=2)
    h = array(x)
    for index, (block, gate) in enumerate(zip(tower.blocks, tower.gates, strict=True)):
        h = dense(block[0], h)  # type: ignore[index]
        h = (relu(h) if index == 0 else h) * 2 * sigmoid(mlp(gate, array(g)))
    assert_close(tower(x, g), h)


def test_lhuc_gates_inherit_tower_options_unless_overridden() -> None:
    tower = LHUCTower(4, [3, 2], lhuc_dims=[5], kernel_norm=None, use_bias=False, lhuc_options={"use_bias": True})
    gate = tower.gates[0]
    assert isinstance(gate, MLP)
    assert gate.first_layer.kernel_norm is None
    assert gate.first_layer.bias is not None
    assert tower.blocks[0][0].bias is None  # type: ignore[index]
    x = random_tensor(2, 4).float()
    torch.testing.assert_close(tower(x), tower(x, x))


def test_lhuc_dims_must_fit_the_layers() -> None:
    with pytest.raises(ValueError, match=r"LHUCTower: lhuc_dims must be sizes, or one list of sizes per layer \(2\)"):
        LHUCTower(4, [3, 2], lhuc_dims=[[5]])


def test_add_bias_finds_its_channels() -> None:
    bias = np.array([1.0, 2.0, 3.0])
    for data_format, sizes, shaped in (
        ("channels_last", (2, 4, 3), bias),
        ("channels_first", (2, 3, 4), bias[:, None]),
        ("channels_first", (2, 3), bias),
    ):
        layer = AddBias(3, data_format=data_format).double()  # type: ignore[arg-type]
        with torch.no_grad():
            layer.bias.copy_(torch.from_numpy(bias))
        x = random_tensor(*sizes)
        assert_close(layer(x), array(x) + shaped)
    with pytest.raises(ValueError, match=r"AddBias: input must have shape \[B, 3, \.\.\.\], got \[3, 2\]"):
        layer(torch.zeros(3, 2))


def test_logit_correction_follows_its_formulas() -> None:
    z, rate = random_tensor(5), torch.rand(5, dtype=torch.float64) + 0.1
    assert_close(correct_logits(z, rate), array(z) - np.log(array(rate)))
    biased = np.log(sigmoid(array(z)))
    assert_close(correct_logits(z, rate, sample_bias=True), biased - np.log(array(rate)))
    assert_close(LogitCorrection(sample_bias=True)(z), biased)
    assert correct_logits(z, None) is z
    assert LogitCorrection()(torch.zeros(1), 0.1).item() == pytest.approx(2.302585, abs=1e-6)  # the stated vector
    assert torch.isfinite(correct_logits(torch.tensor([-1e4, 1e4]), None, sample_bias=True)).all()
    with pytest.raises(ValueError, match=r"correct_logits: sample_rate must be > 0, got 0\.0"):
        correct_logits(z, 0.0)


def test_layer_norm_is_its_formula() -> None:
    layer = randomized(LayerNorm(4))
    x = random_tensor(3, 4)
    rows = array(x)
    normal = (rows - rows.mean(axis=1, keepdims=True)) / np.sqrt(rows.var(axis=1, keepdims=True) + 1e-6)
    assert_close(layer(x), normal * array(layer.weight) + array(layer.bias))


def test_batch_norm_uses_batch_statistics_in_training_and_moving_statistics_in_evaluation() -> None:
    layer = randomized(BatchNorm(3, momentum=0.9))
    batches = [random_tensor(5, 3, seed=seed) for seed in range(3)]
    mean, variance = np.zeros(3), np.ones(3)
    for x in batches:
        rows = array(x)
        normal = (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-6)
        assert_close(layer(x), normal * array(layer.gamma) + array(layer.beta))
        mean, variance = 0.9 * mean + 0.1 * rows.mean(axis=0), 0.9 * variance + 0.1 * rows.var(axis=0)
    assert_close(layer.moving_mean, mean)
    assert_close(layer.moving_variance, variance)
    expected = (array(batches[0]) - mean) / np.sqrt(variance + 1e-6) * array(layer.gamma) + array(layer.beta)
    assert_close(layer.eval()(batches[0]), expected)


def test_batch_norm_of_one_row_is_beta() -> None:
    layer = randomized(BatchNorm(3))
    assert_close(layer(random_tensor(1, 3)), array(layer.beta)[None, :])


def test_feature_insight_is_its_formula() -> None:
    x, weight = random_tensor(4, 6, seed=1), random_tensor(6, 3, seed=2)
    sizes = [1, 3, 2]
    bounds = np.cumsum([0, *sizes])
    parts = [array(x)[:, low:high] @ array(weight)[low:high] for low, high in itertools.pairwise(bounds)]
    assert_close(feature_insight(x, weight, sizes), np.concatenate(parts, axis=1))
    squares = np.stack([(part**2).sum(axis=1) for part in parts], axis=1)
    assert_close(feature_insight(x, weight, sizes, aggregate=True), squares)
    with pytest.raises(ValueError, match="segment_sizes must add up to 6 columns, got 5"):
        feature_insight(x, weight, [3, 2])


def test_insight_of_a_tower_names_the_features_of_its_first_layer() -> None:
    tower = randomized(MLP(5, [4, 1]))
    x = random_tensor(3, 5)
    got = tower.feature_insight(x, {"user": 2, "item": 3})
    kernel = dense(tower.first_layer, np.eye(5)) - array(tower.first_layer.bias)
    assert list(got) == ["user", "item"]
    assert_close(got["user"], ((array(x)[:, :2] @ kernel[:2]) ** 2).sum(axis=1))
    assert_close(got["item"], ((array(x)[:, 2:] @ kernel[2:]) ** 2).sum(axis=1))
