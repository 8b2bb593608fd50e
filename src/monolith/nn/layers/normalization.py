"""Normalisation of activations over the batch and over the last dim."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_between, require_last_dim, require_positive


class LayerNorm(nn.LayerNorm):
    """``y = (x - mean) / sqrt(variance + 1e-6) * gamma + beta``, mean and variance over the last dim of each row.

    torch's layer with the epsilon of ByteDance Monolith. The same in training and in evaluation.
    """

    def __init__(self, dim: int, *, epsilon: float = 1e-6) -> None:
        require_positive("LayerNorm", dim=dim)
        super().__init__(dim, eps=epsilon)


class BatchNorm(nn.Module):
    """``y = (x - mean) / sqrt(variance + epsilon) * gamma + beta``, mean and variance of each column over all rows.

    In training the statistics are those of the batch (variance divided by n), and ``moving = momentum * moving + (1 -
    momentum) * batch`` follows them; in evaluation the moving statistics are used. They are buffers, not
    parameters: they need no optimizer of their own. A batch of one row gives ``beta``; an empty batch gives nothing and
    does not change the moving statistics.

    Args:
        dim: Size of the last dim; all dims before it are rows.
        momentum: Share of the old moving statistics that is kept.
        epsilon: Added to the variance.
    """

    moving_mean: Tensor
    moving_variance: Tensor

    def __init__(self, dim: int, *, momentum: float = 0.99, epsilon: float = 1e-6) -> None:
        super().__init__()
        require_positive("BatchNorm", dim=dim)
        require_between("BatchNorm", 0.0, 1.0, momentum=momentum)
        self.dim = dim
        self.momentum = momentum
        self.epsilon = epsilon
        self.gamma = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))
        self.register_buffer("moving_mean", torch.zeros(dim))
        self.register_buffer("moving_variance", torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `x` ``[..., dim]`` column by column."""
        require_last_dim("BatchNorm", "input", x, self.dim)
        if not self.training or x.numel() == 0:
            mean, variance = self.moving_mean, self.moving_variance
        else:
            rows = x.reshape(-1, self.dim)
            mean, variance = rows.mean(dim=0), rows.var(dim=0, correction=0)
            with torch.no_grad():
                self.moving_mean.lerp_(mean.detach().to(self.moving_mean.dtype), 1.0 - self.momentum)
                self.moving_variance.lerp_(variance.detach().to(self.moving_variance.dtype), 1.0 - self.momentum)
        return (x - mean) * (variance + self.epsilon).rsqrt() * self.gamma + self.beta

    def extra_repr(self) -> str:
        """Returns size and options."""
        return f"{self.dim}, momentum={self.momentum}, epsilon={self.epsilon}"
