"""A learned offset per channel."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice, require_positive


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
