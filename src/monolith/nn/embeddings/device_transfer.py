"""Outputs of a lookup to the device of a model, and their gradients back.

To a GPU the outputs go from page-locked memory, on a stream of their own: the copy begins although the model's stream
is still busy with the step before. The gradients are copied into such memory, too, which takes half the time of a copy
into other memory.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from monolith.data.prefetch.staging import SideStreams

if TYPE_CHECKING:
    from torch import Tensor

_of_thread = threading.local()


def to_device(outputs: Tensor, device: torch.device) -> Tensor:
    """Returns the outputs on a device, for use on the current stream of the calling thread."""
    if device.type != "cuda":
        return outputs.to(device)
    if not hasattr(_of_thread, "streams"):
        _of_thread.streams = SideStreams()
    streams: SideStreams = _of_thread.streams
    return streams.stage([outputs], device).receive()[0]


def to_memory_of(device: torch.device, gradients: Tensor) -> Tensor:
    """Returns the gradients on a device; waits for the copy."""
    if device.type != "cpu" or not gradients.is_cuda:
        return gradients.to(device)
    copy = torch.empty(gradients.shape, dtype=gradients.dtype, pin_memory=True)
    copy.copy_(gradients, non_blocking=True)
    torch.cuda.current_stream(gradients.device).synchronize()
    return copy
