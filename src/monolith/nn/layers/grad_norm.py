"""Balancing the losses of several tasks by the size of their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence


class BalancedLoss(NamedTuple):
    """Add both to what is minimised."""

    norm_loss: Tensor
    """Trains the weights of the losses, and nothing else."""
    weighted_loss: Tensor
    """Trains the model, and not the weights of the losses."""


class GradNorm(nn.Module):
    """Weights for losses such that each pulls equally hard at what they share.

    ``w = softmax(v)``, v learned and starting at 0; ``g_i = length of dL_i / dshared`` (a constant);
    ``norm_loss = scale * sum over i of abs(w_i g_i - mean over j of w_j g_j)^power``, each difference divided by the
    mean plus epsilon if `is_relative`; ``weighted_loss = sum over i of w_i L_i`` (w a constant).

    Reference: Chen et al., GradNorm, arXiv:1711.02257.

    Args:
        loss_names: Names of the losses, in order.
        scale: Factor of the norm loss.
        power: Exponent of the differences.
        is_relative: Whether differences are relative to the mean.
        epsilon: Keeps a relative difference finite.
    """

    def __init__(
        self,
        loss_names: Sequence[str],
        *,
        scale: float = 1.0,
        power: float = 2.0,
        is_relative: bool = False,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__()
        if not loss_names or len(set(loss_names)) != len(loss_names):
            raise ValueError(f"GradNorm: loss_names must be distinct and at least one, got {list(loss_names)}")
        if power < 1:
            raise ValueError(f"GradNorm: power must be >= 1, got {power!r}")
        self.loss_names = list(loss_names)
        self.scale = scale
        self.power = power
        self.is_relative = is_relative
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.zeros(len(loss_names)))

    def loss_weights(self) -> dict[str, float]:
        """Returns the current weight of each loss, by name."""
        return dict(zip(self.loss_names, torch.softmax(self.weight.detach(), dim=0).tolist(), strict=True))

    def forward(self, losses: Sequence[Tensor], shared: Tensor | Sequence[Tensor]) -> BalancedLoss:
        """Returns both losses of the step.

        Args:
            losses: One scalar per name.
            shared: What all losses were computed from: activations or weights, one tensor or several. Without gradients
                (in evaluation), all lengths count as 0.
        """
        if len(losses) != len(self.loss_names):
            raise ValueError(f"GradNorm: expected {len(self.loss_names)} losses, got {len(losses)}")
        weights = torch.softmax(self.weight, dim=0)
        tensors = [shared] if isinstance(shared, Tensor) else list(shared)
        norms = torch.stack([_gradient_norm(loss, tensors) for loss in losses])
        weighted_norms = weights * norms
        mean = weighted_norms.mean()
        differences = (weighted_norms - mean).abs()
        if self.is_relative:
            differences = differences / (mean + self.epsilon)
        norm_loss = self.scale * differences.pow(self.power).sum()
        return BalancedLoss(norm_loss, (weights.detach() * torch.stack(list(losses))).sum())


def _gradient_norm(loss: Tensor, shared: list[Tensor]) -> Tensor:
    if loss.ndim != 0:
        raise ValueError(f"GradNorm: a loss must be a scalar, got shape {list(loss.shape)}")
    if not loss.requires_grad:
        return loss.new_zeros(())
    gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, shared, retain_graph=True, allow_unused=True)
    squares = [loss.new_zeros(()) if gradient is None else gradient.square().sum() for gradient in gradients]
    return torch.stack(squares).sum().sqrt().detach()
