"""Copies of tensors in memory that was touched before: what makes a cut of dense weights short.

The first touch of a page costs more than ten times what copying it costs, so one buffer is kept for all saves.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALIGNMENT = 64


class Staging:
    """A buffer that holds one copy of a set of tensors. One thread at a time."""

    def __init__(self) -> None:
        self._buffer: Tensor = torch.empty(0, dtype=torch.uint8)

    @property
    def bytes(self) -> int:
        """Size of the buffer."""
        return self._buffer.numel()

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Makes the buffer large enough for these, and touches it."""
        size = sum(_padded(tensor) for tensor in tensors.values())
        if self._buffer.numel() < size:
            pinned = any(tensor.is_cuda for tensor in tensors.values())
            self._buffer = (
                torch.empty(size, dtype=torch.uint8, pin_memory=True) if pinned else large_buffer(size).zero_()
            )

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Contiguous copies on the CPU, valid until the next call."""
        self.prepare(tensors)
        copies: dict[str, Tensor] = {}
        offset = 0
        for name, tensor in tensors.items():
            raw = self._buffer[offset : offset + tensor.numel() * tensor.element_size()]
            copies[name] = raw.view(tensor.dtype).view(tensor.shape)
            offset += _padded(tensor)
        for name, tensor in tensors.items():
            copies[name].copy_(tensor, non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return copies


def _padded(tensor: Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    return size + -size % _ALIGNMENT


def large_buffer(size: int) -> Tensor:
    """Returns bytes on huge pages where the system has them: the first access then takes a tenth of the time."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    # The tensor keeps the mapping alive.
    return torch.frombuffer(memory, dtype=torch.uint8)
