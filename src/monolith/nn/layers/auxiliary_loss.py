"""Losses of layers in addition to the model's own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class HasAuxiliaryLoss(Protocol):
    """A layer with a loss of its own: `MMoE` with top-k gates, `SNR`, `iRazor`, and yours."""

    def auxiliary_loss(self) -> Tensor:
        """Returns the loss, a scalar, of the current weights and, where it depends on it, the last batch."""
        ...


def auxiliary_loss(module: nn.Module) -> Tensor:
    """Returns the sum of the losses of all layers inside `module`; 0 without any. Call it after the forward pass.

    >>> float(auxiliary_loss(nn.Linear(2, 2)))
    0.0
    """
    losses = [layer.auxiliary_loss() for layer in module.modules() if isinstance(layer, HasAuxiliaryLoss)]
    return torch.stack(losses).sum() if losses else torch.zeros(())
