"""Counting how often an id was seen, inside its own embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _FidCounter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, counter: Tensor, threshold: float, step: float) -> Tensor:
        ctx.save_for_backward(counter)
        ctx.threshold, ctx.step = threshold, step
        return (counter + step).clamp_max(threshold)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # noqa: ARG004 - a constant takes its place
        (counter,) = ctx.saved_tensors
        return torch.where(counter < ctx.threshold, -ctx.step, 0.0).to(counter.dtype), None, None


def fid_counter(counter: Tensor, threshold: float, step: float = 1.0) -> Tensor:
    """``min(counter + step, threshold)``, with the constant gradient ``-step`` below the threshold and 0 from there on.

    Give an id a slice of dim 1 that starts at 0 and learns by ``Sgd(learning_rate=1.0)``: each update then adds `step`,
    so the slice counts how often its id was trained. The gradient flows only where the result takes part in the loss; a
    factor of 0 is enough.

    Args:
        counter: The slice, any shape.
        threshold: Where counting ends, > 0.
        step: What one occurrence adds, > 0.
    """
    if not (threshold > 0 and step > 0):
        raise ValueError(f"fid_counter: threshold and step must be > 0, got {threshold!r} and {step!r}")
    count: Tensor = _FidCounter.apply(counter, threshold, step)  # type: ignore[no-untyped-call]
    return count
