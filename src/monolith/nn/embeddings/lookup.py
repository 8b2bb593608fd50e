"""A lookup: its autograd node, its outputs, their copies between devices, and what torch.compile leaves alone.

All outputs are views of one buffer, and all gradients arrive together at one node. To a GPU the outputs go from
page-locked memory, on a stream of their own: the copy begins although the model's stream is still busy with the step
before. The gradients are copied into such memory, too, which takes half the time of a copy into other memory.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from monolith.data.prefetch import SideStreams
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.nn.embeddings.passes import PassHandle
    from monolith.nn.embeddings.pooling import PooledLayout


class EmbeddingOutputs(dict[str, Tensor]):
    """Slot name -> its output, float32 [B, dim] (or [B, n, dim] for `FirstN`), in the order of the slots.

    All outputs are views of one buffer, so `concat` and `stack` of all slots cost nothing. Change none in place.
    """

    def __init__(self, outputs: Mapping[str, Tensor], buffer: Tensor) -> None:
        super().__init__(outputs)
        self._buffer = buffer

    def concat(self, *names: str) -> Tensor:
        """[B, sum of widths]: the outputs side by side, all of them or those named; sequences are laid flat."""
        if not names:
            return self._buffer
        return torch.cat([self[name].flatten(1) for name in names], dim=1)

    def stack(self, *names: str) -> Tensor:
        """[B, slots, dim]: one row for each slot, all of them or those named.

        Raises:
            InvalidArgumentError: their outputs differ in shape.
        """
        shapes = {name: tuple(self[name].shape[1:]) for name in names or self}
        first = next(iter(shapes.values()))
        if len(set(shapes.values())) > 1:
            raise InvalidArgumentError(f"stack: slots must have outputs of one shape, got {shapes}; use concat")
        if names:
            return torch.stack([self[name] for name in names], dim=1)
        return self._buffer.view(self._buffer.shape[0], len(self), *first)  # len() would be a number in a graph


class LookupFunction(torch.autograd.Function):
    """Returns a buffer [B, W] and its columns, and collects their gradients for the rows they were pooled from.

    Its first argument takes no part in the mathematics. It requires a gradient, so that torch calls `backward`; it gets
    one of zero, which torch clears when it clears all gradients.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, buffer: Tensor, layout: PooledLayout, end: PassHandle) -> tuple[Tensor, ...]:
        """Returns the buffer, then the output of each slot in the order of the model."""
        ctx.set_materialize_grads(False)
        ctx.layout, ctx.end, ctx.anchor = layout, end, anchor
        whole = buffer.detach()  # an input returned as it is would not count as an output of this node
        return whole, *outputs_of(whole, layout)

    @staticmethod
    def backward(ctx: Any, whole: Tensor | None, *parts: Tensor | None) -> tuple[Tensor | None, ...]:
        """Adds up the gradients of the buffer and of its columns."""
        # With create_graph=True this could be differentiated again, which raises.
        collect = _collect_once if torch.is_grad_enabled() else _collect
        return collect(ctx, whole, *parts)


def _collect(ctx: Any, whole: Tensor | None, *parts: Tensor | None) -> tuple[Tensor | None, ...]:
    registry, batch_pass = ctx.end.find()
    device, layout = batch_pass.device, ctx.layout
    columns = layout.flat_columns(parts)
    first = next((gradient for gradient in (whole, *parts) if gradient is not None), None)
    if first is not None and first.device != device:  # all are where the buffer is
        whole, columns = _moved(whole, columns, layout, device), [None] * len(columns)
    registry.add_gradient(batch_pass, batch_pass.pooled.sum_gradients(whole, columns, device))
    return ctx.anchor.new_zeros(ctx.anchor.shape), None, None, None


_collect_once = once_differentiable(_collect)


def look_up(anchor: Tensor, buffer: Tensor, layout: PooledLayout, end: PassHandle) -> tuple[Tensor, ...]:
    """Calls `LookupFunction` with types: returns the buffer and its columns, differentiable."""
    outputs: tuple[Tensor, ...] = LookupFunction.apply(anchor, buffer, layout, end)  # type: ignore[no-untyped-call]
    return outputs


def outputs_of(buffer: Tensor, layout: PooledLayout) -> list[Tensor]:
    """Returns the output of each slot, in the order of the model, as a view of the buffer [B, W]."""
    outputs = list(buffer.split_with_sizes(layout.widths, dim=1))
    for place in layout.sequences:
        slot = layout.model_slots[place]
        outputs[place] = outputs[place].view(slot.combiner.shape(buffer.shape[0], slot.dim))
    return outputs


def _moved(
    whole: Tensor | None, columns: Sequence[Tensor | None], layout: PooledLayout, device: torch.device
) -> Tensor:
    """Returns all gradients [B, W] on another device, by one transfer."""
    first = next(gradient for gradient in (whole, *columns) if gradient is not None)
    total = torch.zeros(first.shape[0], layout.width, device=first.device) if whole is None else whole.clone()
    for column, gradient in zip(total.split_with_sizes(layout.widths, dim=1), columns, strict=True):
        if gradient is not None:
            column.add_(gradient)
    return to_memory_of(device, total)


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


P = ParamSpec("P")
R = TypeVar("R")

_COMPILER = "torch._dynamo"


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Applies `torch.compiler.disable` once the compiler is loaded: loading it takes as long as loading torch."""
    disabled: Callable[P, R] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal disabled
        if disabled is None:
            if _COMPILER not in sys.modules:
                return function(*args, **kwargs)
            disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return disabled(*args, **kwargs)

    return call
