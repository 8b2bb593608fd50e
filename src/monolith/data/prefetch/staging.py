"""CUDA tensors from one thread to another: made on a side stream, waited for on the stream that uses them.

A GPU runs streams independently. A producer works on a stream of its own, so that its copies and kernels overlap with
training; its tensors travel with an event, and the stream of the consumer waits for that event, not the consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class StagedTensors:
    """Tensors with events that signal when they are ready. Made by the producer, received by the consumer once.

    Args:
        tensors: Tensors on any devices, as of the current streams of their devices.
    """

    __slots__ = ("_ready", "tensors")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        """For inspection only: they may not be ready."""
        devices = {tensor.device for tensor in self.tensors if tensor.is_cuda}
        self._ready = [(device, torch.cuda.current_stream(device).record_event()) for device in devices]

    def receive(self) -> list[Tensor]:
        """Returns the tensors, for use on the current streams of the thread that calls."""
        for device, event in self._ready:
            torch.cuda.current_stream(device).wait_event(event)
        if self._ready:
            for tensor in self.tensors:
                if tensor.is_cuda:
                    # Their memory was taken for the producer's stream; it must not be reused before this one is done.
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return self.tensors


class SideStreams:
    """Streams separate from those that a model trains on, one for each GPU. Each thread has its own object."""

    def __init__(self) -> None:
        self._streams: dict[int, torch.cuda.Stream] = {}

    def run(self, call: Callable[[], object]) -> None:
        """Runs a call with the side stream of the current GPU as the current one; directly if no GPU is in use."""
        # Creating a stream would initialize CUDA in a process that merely runs on a machine with a GPU.
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            call()
            return
        with torch.cuda.stream(self._stream(torch.cuda.current_device())):
            call()

    def stage(self, tensors: Sequence[Tensor], device: torch.device) -> StagedTensors:
        """Copies tensors to a device, on the side stream where it is a GPU."""
        if device.type != "cuda":
            return StagedTensors([tensor.to(device) for tensor in tensors])
        # "cuda" without a number has no index, contrary to torch's type hints.
        index = torch.cuda.current_device() if device.index is None else device.index  # type: ignore[redundant-expr]
        stream = self._stream(index)
        if any(tensor.is_cuda for tensor in tensors):  # it may still be in the making there
            stream.wait_stream(torch.cuda.current_stream(index))
        with torch.cuda.stream(stream):
            # Only copies from page-locked memory are asynchronous.
            pinned = [tensor.pin_memory() if tensor.device.type == "cpu" else tensor for tensor in tensors]
            copies = [tensor.to(device, non_blocking=True) for tensor in pinned]
            for tensor in tensors:
                if tensor.is_cuda and tensor.device.index == index:
                    tensor.record_stream(stream)
            return StagedTensors(copies)

    def _stream(self, index: int) -> torch.cuda.Stream:
        if index not in self._streams:
            self._streams[index] = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        return self._streams[index]
