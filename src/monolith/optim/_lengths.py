"""Lengths (2-norms) of tensors, one by one, accurate at any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from monolith.optim import _foreach as foreach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_LARGE = 1 << 16
_PART = 4096


def lengths(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The length of each tensor, 0-dimensional, in float64 for float64 and in float32 for all others.

    All tensors have one device and one dtype.
    """
    if not tensors:
        return []
    if tensors[0].dtype not in {torch.float32, torch.float64}:
        return [_length(tensor.to(torch.float32)) for tensor in tensors]
    if tensors[0].dtype is torch.float64 or tensors[0].device.type != "cpu":
        return list(foreach.norm(list(tensors)))
    return [_length(tensor) for tensor in tensors]


def _length(tensor: Tensor) -> Tensor:
    """By parts: torch's float32 norm on the CPU sums one by one, and is wrong by 0.3 % at 20 million elements."""
    while tensor.numel() > _LARGE and tensor.device.type == "cpu":
        flat = tensor.reshape(-1)
        whole = flat.numel() // _PART * _PART
        parts = torch.linalg.vector_norm(flat[:whole].view(-1, _PART), dim=1)
        tensor = torch.cat([parts, flat[whole:]])
    length: Tensor = torch.linalg.vector_norm(tensor)
    return length
