"""Undoing, in the logits of training, that the examples were sampled."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from monolith.nn.layers.activations import Activation, activation_layer


def correct_logits(logits: Tensor, sample_rate: Tensor | float | None, *, sample_bias: bool = False) -> Tensor:
    """Logits as they would be on the sampled data.

    ``z' = z - ln(sample_rate)``; with `sample_bias`, ``z' = ln(sigmoid(z)) - ln(sample_rate)``. Train on z' and serve
    with z.

    Args:
        logits: Any shape.
        sample_rate: Share of the negatives that was kept, > 0: a number, or a tensor that broadcasts to the logits.
            None means 1.
        sample_bias: Whether every example was emitted as a negative first and the positives again later ("fast emit").
    """
    corrected = functional.logsigmoid(logits) if sample_bias else logits
    if sample_rate is None:
        return corrected
    if isinstance(sample_rate, Tensor):
        return corrected - torch.log(sample_rate)
    if not sample_rate > 0:
        raise ValueError(f"correct_logits: sample_rate must be > 0, got {sample_rate!r}")
    return corrected - math.log(sample_rate)


class LogitCorrection(nn.Module):
    """`correct_logits` as a layer, with an optional activation after it.

    >>> LogitCorrection()(torch.zeros(1), 0.1)
    tensor([2.3026])
    """

    def __init__(self, *, activation: Activation = None, sample_bias: bool = False) -> None:
        super().__init__()
        self.activation = activation_layer(activation)
        self.sample_bias = sample_bias

    def forward(self, logits: Tensor, sample_rate: Tensor | float | None = None) -> Tensor:
        """Returns the corrected logits, shape of `logits`."""
        corrected: Tensor = self.activation(correct_logits(logits, sample_rate, sample_bias=self.sample_bias))
        return corrected
