"""The one autograd node of a lookup: all outputs are views of one buffer, all gradients come back together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.nn._passes import GraphEnd
    from monolith.nn._pooling import PooledLayout


class LookupFunction(torch.autograd.Function):
    """Hands out a buffer [B, W] and its columns, and collects their gradients for the rows behind them.

    Its first argument takes no part in the mathematics; it requires a gradient, so that torch calls `backward`.
    """

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, buffer: Tensor, layout: PooledLayout, end: GraphEnd) -> tuple[Tensor, ...]:
        """The buffer, then the output of each slot in the order of the model."""
        ctx.set_materialize_grads(False)
        ctx.layout, ctx.end = layout, end
        whole = buffer.detach()  # an input handed through would not count as an output of this node
        return whole, *outputs_of(whole, layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, whole: Tensor | None, *parts: Tensor | None) -> tuple[None, ...]:
        """Adds up what came for the buffer and what came for its columns."""
        layout = ctx.layout
        ledger, batch_pass = ctx.end.find()
        batch, device = batch_pass.batch, batch_pass.device
        gradients = _column_gradients(whole, parts, layout)
        if any(each is not None and each.device != device for each in gradients):
            gradients = _moved(gradients, layout, batch.num_examples, device)
        ledger.add_gradient(batch_pass, batch.pooled.sum_gradients(gradients, device))
        return None, None, None, None


def look_up(anchor: Tensor, buffer: Tensor, layout: PooledLayout, end: GraphEnd) -> tuple[Tensor, ...]:
    """`LookupFunction` with types: the buffer and its columns, differentiable."""
    outputs: tuple[Tensor, ...] = LookupFunction.apply(anchor, buffer, layout, end)  # type: ignore[no-untyped-call]
    return outputs


def outputs_of(buffer: Tensor, layout: PooledLayout) -> list[Tensor]:
    """The output of each slot, in the order of the model, as a view of the buffer [B, W]."""
    num_examples = buffer.shape[0]
    return [
        part if slot.combiner.max_seq_length == 0 else part.view(slot.combiner.shape(num_examples, slot.dim))
        for slot, part in zip(layout.model_slots, buffer.split_with_sizes(layout.widths, dim=1), strict=True)
    ]


def _column_gradients(
    whole: Tensor | None, parts: Sequence[Tensor | None], layout: PooledLayout
) -> list[Tensor | None]:
    """[B, width] or None of each slot, in the order of the model."""
    flat = [None if part is None else part.flatten(1) for part in parts]
    if whole is None:
        return flat
    columns = whole.split_with_sizes(layout.widths, dim=1)
    return [column if part is None else column + part for column, part in zip(columns, flat, strict=True)]


def _moved(
    gradients: Sequence[Tensor | None], layout: PooledLayout, num_examples: int, device: torch.device
) -> list[Tensor | None]:
    """The gradients on another device, by one transfer."""
    source = next(each.device for each in gradients if each is not None)
    whole = torch.zeros(num_examples, layout.width, device=source)
    for column, gradient in zip(whole.split_with_sizes(layout.widths, dim=1), gradients, strict=True):
        if gradient is not None:
            column.copy_(gradient)
    return list(whole.to(device).split_with_sizes(layout.widths, dim=1))
