"""Random float64 layers and inputs, and NumPy views of them, for references written from the formulas."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]
M = TypeVar("M", bound=nn.Module)


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    """Normal float64 numbers."""
    generator = torch.Generator().manual_seed(seed * 7919 + len(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def randomized(module: M, seed: int = 0) -> M:
    """The module in float64 with every parameter drawn anew, so that no start at 0 or 1 hides a term of a formula."""
    module.double()
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(0.5 * random_tensor(*parameter.shape, seed=seed * 101 + index + 1))
    return module


def array(tensor: Tensor | Any) -> Array:
    """A tensor as a float64 array."""
    assert isinstance(tensor, Tensor)
    return np.asarray(tensor.detach().numpy(), dtype=np.float64)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)), dtype=np.float64)


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / sum of exp(x)."""
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True), dtype=np.float64)


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def linear(layer: nn.Linear, x: Array) -> Array:
    """What torch's linear layer should give."""
    result: Array = x @ array(layer.weight).T
    bias: Tensor | None = layer.bias
    return result if bias is None else result + array(bias)


def dense(layer: Any, x: Array) -> Array:
    """What the linear part of our `Dense` should give, column by column."""
    columns = []
    for unit in range(layer.units):
        w = array(layer.weight)[unit]
        if layer.kernel_norm is not None:
            w = w / np.sqrt(max(float((w * w).sum()), 1e-6))
        if layer.kernel_norm == "trainable":
            w = w * array(layer.gain)[unit]
        columns.append(x @ w + (0.0 if layer.bias is None else array(layer.bias)[unit]))
    return np.stack(columns, axis=-1)


def mlp(tower: Any, x: Array) -> Array:
    """What an `MLP` without batch norm, relu inside and linear at the end, should give."""
    for index, block in enumerate(tower.blocks):
        x = dense(block[0], x)
        if index < len(tower.blocks) - 1:
            x = relu(x)
    return x


def assert_close(got: Tensor | Any, expected: Array, *, rtol: float = 1e-10) -> None:
    """Same shape and, up to float64 rounding, same numbers."""
    assert isinstance(got, Tensor)
    assert tuple(got.shape) == expected.shape
    np.testing.assert_allclose(array(got), expected, rtol=rtol, atol=1e-12)
