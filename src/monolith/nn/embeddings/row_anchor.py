"""The one parameter of a module with rows: it stands for all of them where torch walks the parameters of a model."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn


class RowAnchor(nn.Parameter):
    """A zero whose gradient is zero. The presence of a gradient shows that rows have gradients.

    So `model.zero_grad()`, which sets the gradients of all parameters to None, is seen by the module, and so is
    `requires_grad_(False)`. Optimizers, clipping and averages that get it with the other parameters leave it zero and
    learn nothing from it. It is not in a state dictionary.
    """

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Self:
        """Creates the parameter; torch makes copies by these arguments."""
        made: Self = super().__new__(cls, torch.zeros(1) if data is None else data, requires_grad)
        return made


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    """Returns `model.parameters()` without the anchors, which are no weights."""
    return [parameter for parameter in model.parameters() if not isinstance(parameter, RowAnchor)]
