"""Activations by name; every use of a name is a fresh layer.

| Name | f(x) |
|---|---|
| ``elu`` | x if x > 0, else exp(x) - 1 |
| ``exponential`` | exp(x) |
| ``gelu`` | x P(N(0, 1) <= x) |
| ``hard_sigmoid`` | min(max(x + 3, 0), 6) / 6 |
| ``leaky_relu`` | x if x > 0, else 0.01 x |
| ``linear`` | x |
| ``prelu`` | x if x > 0, else a x; a is learned, starts at 0.25 |
| ``relu`` | max(x, 0) |
| ``selu`` | s x if x > 0, else s a (exp(x) - 1); s = 1.0507, a = 1.6733 |
| ``sigmoid`` | 1 / (1 + exp(-x)) |
| ``sigmoid2`` | 2 / (1 + exp(-x)) |
| ``softmax`` | exp(x) / sum of exp(x) over the last dim |
| ``softplus`` | ln(1 + exp(x)) |
| ``softsign`` | x / (1 + abs(x)) |
| ``swish`` | x sigmoid(x) |
| ``tanh`` | tanh(x) |
| ``thresholded_relu`` | x if x > 1, else 0 |
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice

Activation: TypeAlias = str | nn.Module | type[nn.Module] | Callable[[Tensor], Tensor] | None
"""A name of the table above, a module (copied for each use), a module class, a function, or None for no activation."""


class Function(nn.Module):
    """Applies a function of one tensor, so that it can stand among layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Returns the function of `x`."""
        return self.function(x)

    def extra_repr(self) -> str:
        """Returns the function's name."""
        return getattr(self.function, "__name__", repr(self.function))


def sigmoid2(x: Tensor) -> Tensor:
    """2 sigmoid(x): 1 at 0, so that a gate starts out open half-way between off and double."""
    return 2.0 * torch.sigmoid(x)


_FACTORIES: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "exponential": lambda: Function(torch.exp),
    "gelu": nn.GELU,
    "hard_sigmoid": nn.Hardsigmoid,
    "leaky_relu": nn.LeakyReLU,
    "linear": nn.Identity,
    "prelu": nn.PReLU,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "sigmoid2": lambda: Function(sigmoid2),
    "softmax": lambda: nn.Softmax(dim=-1),
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
    "thresholded_relu": lambda: nn.Threshold(1.0, 0.0),
}

ACTIVATION_NAMES = tuple(sorted(_FACTORIES))


def activation_layer(activation: Activation) -> nn.Module:
    """A fresh layer for `activation`; None gives the identity."""
    if activation is None:
        return nn.Identity()
    if isinstance(activation, str):
        require_choice("activation", "name", activation, ACTIVATION_NAMES)
        return _FACTORIES[activation]()
    if isinstance(activation, nn.Module):
        return copy.deepcopy(activation)
    if isinstance(activation, type):
        layer: nn.Module = activation()
        return layer
    if callable(activation):
        return Function(activation)
    raise TypeError(f"activation must be a name, a module, a function or None, got {activation!r}")


def per_layer_activations(
    subject: str, activations: Activation | Sequence[Activation], num_layers: int
) -> list[Activation]:
    """Returns one activation for each of `num_layers` layers.

    None means relu on all but the last, one activation means that one on all but the last, a list names one for each.
    """
    if isinstance(activations, Sequence) and not isinstance(activations, str):
        if len(activations) != num_layers:
            raise ValueError(
                f"{subject}: activations must name one for each of {num_layers} layers, got {len(activations)}"
            )
        return list(activations)
    hidden: Activation = "relu" if activations is None else activations
    return [hidden] * (num_layers - 1) + [None]
