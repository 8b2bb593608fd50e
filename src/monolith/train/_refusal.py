"""Why a step must not be applied: exchanged by the ranks of a synchronous run before any of them changes state."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.nn import Parameter

    from monolith.checkpoint import TrainState
    from monolith.nn.embeddings.gradient_step import GradientStep

__all__ = ["Refusal"]


class Refusal:
    """Checks loss and gradients of one batch for NaN and infinity.

    Args:
        loss: Loss of the batch.
        state: Has the names of the weights.
        scale: The clip factor of the rows.
    """

    def __init__(self, loss: Tensor, state: TrainState, scale: float) -> None:
        self._loss = loss
        self._state = state
        self.has_scale = math.isfinite(scale)
        """Whether the clip factor can be applied."""

    def reason(self, weights: Sequence[Parameter], steps: Sequence[GradientStep]) -> str | None:
        """Returns a text that names what is not finite, or None."""
        if not bool(torch.isfinite(self._loss.detach()).all()):
            return f"its loss is {float(self._loss.detach()):g}"
        bad = next((each for each in weights if each.grad is not None and not _is_finite(each.grad)), None)
        if bad is not None:
            return f"the gradient of weight {self._name_of(bad)!r} is not finite"
        reason = next((found for each in steps if (found := each.refusal()) is not None), None)
        return reason if reason is not None or self.has_scale else "the norm of its gradients is not finite"

    def _name_of(self, weight: Parameter) -> str:
        named = [] if self._state.model is None else list(self._state.model.named_parameters())
        return next((name for name, each in named if each is weight), "(not one of the model)")


def _is_finite(values: Tensor) -> bool:
    # A sum is one pass over the values; only if it is not finite are all of them checked.
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
