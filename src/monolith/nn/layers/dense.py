"""Dense layers, a bias per channel, and normalisation over the batch or the last dim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from monolith.nn._arguments import require_between, require_choice, require_last_dim, require_positive
from monolith.nn.layers.activations import Activation, activation_layer

KernelNorm: TypeAlias = Literal["fixed", "trainable"] | None
"""None: weights as they are. "fixed": of length 1 per unit. "trainable": of a learned length per unit."""

Initializer: TypeAlias = Callable[[Tensor], object]
"""Fills a weight ``[units, input_dim]`` in place, like the functions of ``torch.nn.init``."""

_MIN_SQUARED_NORM = 1e-6
_DEAD_UNITS_DECAY = 0.99


class Dense(nn.Module):
    """A linear map with bias and activation.

    ``y = act(x W + b)`` for ``x [..., input_dim]``, W ``[input_dim, units]``. With a kernel norm, column j of W is
    replaced by ``g_j w_j / sqrt(max(sum w_j^2, 1e-6))``; the gain ``g_j`` is 1 ("fixed") or learned, starting at the
    length of the initial ``w_j`` ("trainable"), so that the layer starts the same with and without it.

    Args:
        input_dim: Size of the last dim of the input.
        units: Size of the last dim of the output.
        activation: See `activations`.
        use_bias: Whether to add b, which starts at 0.
        kernel_norm: See `KernelNorm`. The weight is kept as torch keeps it, ``[units, input_dim]``.
        initializer: How W starts; Glorot uniform by default.
        counts_dead_units: Keep in the buffer ``dead_units`` a moving average (decay 0.99, over training batches) of the
            number of units that put out 0 for every row of the batch.

    >>> Dense(3, 2, activation="relu")(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    dead_units: Tensor | None

    def __init__(
        self,
        input_dim: int,
        units: int,
        *,
        activation: Activation = None,
        use_bias: bool = True,
        kernel_norm: KernelNorm = None,
        initializer: Initializer | None = None,
        counts_dead_units: bool = False,
    ) -> None:
        super().__init__()
        require_positive("Dense", input_dim=input_dim, units=units)
        require_choice("Dense", "kernel_norm", kernel_norm, (None, "fixed", "trainable"))
        self.input_dim = input_dim
        self.units = units
        self.kernel_norm = kernel_norm
        self.initializer = initializer or nn.init.xavier_uniform_
        self.weight = nn.Parameter(torch.empty(units, input_dim))
        self.bias = nn.Parameter(torch.empty(units)) if use_bias else None
        self.gain = nn.Parameter(torch.empty(units)) if kernel_norm == "trainable" else None
        self.activation = activation_layer(activation)
        self.register_buffer("dead_units", torch.zeros(()) if counts_dead_units else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights."""
        with torch.no_grad():
            self.initializer(self.weight)
            if self.bias is not None:
                self.bias.zero_()
            if self.gain is not None:
                self.gain.copy_(self.weight.norm(dim=1))

    def kernel(self) -> Tensor:
        """Returns the weights in effect, ``[units, input_dim]``: normalised if the layer normalises."""
        if self.kernel_norm is None:
            return self.weight
        scale = self.weight.square().sum(dim=1).clamp_min(_MIN_SQUARED_NORM).rsqrt()
        if self.gain is not None:
            scale = scale * self.gain
        return self.weight * scale.unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the output ``[..., units]`` for `x` ``[..., input_dim]``."""
        require_last_dim("Dense", "input", x, self.input_dim)
        y: Tensor = self.activation(functional.linear(x, self.kernel(), self.bias))
        if self.dead_units is not None and self.training and y.numel() > 0:
            dead = (y.detach() == 0).reshape(-1, self.units).all(dim=0).sum()
            self.dead_units.mul_(_DEAD_UNITS_DECAY).add_(dead, alpha=1.0 - _DEAD_UNITS_DECAY)
        return y

    def extra_repr(self) -> str:
        """Returns sizes and options."""
        return f"{self.input_dim}, {self.units}, use_bias={self.bias is not None}, kernel_norm={self.kernel_norm!r}"


class AddBias(nn.Module):
    """``y = x + b``, with one b per channel, starting at 0.

    Args:
        num_channels: Number of channels.
        data_format: "channels_last": the last dim is the channel; "channels_first": the dim after the batch is.
    """

    def __init__(
        self, num_channels: int, *, data_format: Literal["channels_last", "channels_first"] = "channels_last"
    ) -> None:
        super().__init__()
        require_positive("AddBias", num_channels=num_channels)
        require_choice("AddBias", "data_format", data_format, ("channels_last", "channels_first"))
        self.num_channels = num_channels
        self.data_format = data_format
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        """`x` with the bias added to every channel."""
        channel_dim = 1 if self.data_format == "channels_first" else x.ndim - 1
        if x.ndim < 2 or x.shape[channel_dim] != self.num_channels:
            expected = f"[B, {self.num_channels}, ...]" if channel_dim == 1 else f"[B, ..., {self.num_channels}]"
            raise ValueError(f"AddBias: input must have shape {expected}, got {list(x.shape)}")
        return x + self.bias.view(-1, *[1] * (x.ndim - 1 - channel_dim))


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
