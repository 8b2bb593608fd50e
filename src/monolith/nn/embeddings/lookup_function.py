"""The one autograd node of a lookup: all outputs are views of one buffer, and all gradients arrive together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from monolith.nn.embeddings.device_transfer import to_memory_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.nn.embeddings.passes import PassHandle
    from monolith.nn.embeddings.pooling import PooledLayout


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
    given = next((each for each in (whole, *parts) if each is not None), None)
    if given is not None and given.device != device:  # all are where the buffer is
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
    given = next(each for each in (whole, *columns) if each is not None)
    total = torch.zeros(given.shape[0], layout.width, device=given.device) if whole is None else whole.clone()
    for column, gradient in zip(total.split_with_sizes(layout.widths, dim=1), columns, strict=True):
        if gradient is not None:
            column.add_(gradient)
    return to_memory_of(device, total)
