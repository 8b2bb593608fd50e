"""The buffer of `fill_with_offset_map`: what is learnt at its places goes back to the values that were copied there.

    value k stands at the places p of the buffer    gradient of value k = sum of the gradients of the places p

A value that was overwritten, by another value for the same key or by a later call, has no place and gets none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from monolith.errors import InvalidArgumentError
from monolith.tables.arrays import float_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Indices = NDArray[np.int64]

__all__ = ["fill_with_gradient", "is_learnt", "sources_of_places", "writable_floats"]


def writable_floats(buffer: Any, subject: str) -> NDArray[np.float32]:
    """Returns the memory of the buffer itself, never a copy of it."""
    if isinstance(buffer, Tensor):
        usable = buffer.is_contiguous()
    else:
        usable = isinstance(buffer, np.ndarray) and buffer.flags.c_contiguous and buffer.flags.writeable
    if not usable or buffer.ndim != 1:
        kind = f"{type(buffer).__name__} of shape {tuple(np.shape(buffer))}"
        raise InvalidArgumentError(f"{subject}: buffer must be contiguous and writable, of one dimension, got {kind}")
    return float_array(buffer, tuple(buffer.shape), subject, "buffer")


def is_learnt(values: Any, buffer: Any, subject: str) -> bool:
    """Returns whether a gradient has to flow back through the buffer."""
    needed = [isinstance(part, Tensor) and part.requires_grad for part in (values, buffer)]
    if not any(needed) or not torch.is_grad_enabled():
        return False
    if not isinstance(buffer, Tensor):
        raise InvalidArgumentError(
            f"{subject}: values require a gradient, which a NumPy buffer cannot carry; "
            "give the keys of unique_key_with_value_and_offset as a tensor, or detach the values"
        )
    return True


def sources_of_places(
    positions: Indices, dims_of_positions: Indices, offsets: Indices, offset_splits: Indices, num_places: int
) -> Tensor:
    """Returns int64 [num_places]: which value each place of the buffer gets, -1 where it is unchanged."""
    counts = (offset_splits[1:] - offset_splits[:-1])[positions]
    starts = np.cumsum(dims_of_positions) - dims_of_positions
    # One line for each (position, occurrence of its key); then one for each of its floats.
    occurrences = offsets[_runs(offset_splits[positions], counts)]
    dims = np.repeat(dims_of_positions, counts)
    sources = np.full(num_places, -1, np.int64)
    # Of a position that occurs twice the last one wins, as in the core.
    sources[_runs(occurrences, dims)] = _runs(np.repeat(starts, counts), dims)
    return torch.from_numpy(sources)


def _runs(starts: Indices, lengths: Indices) -> Indices:
    """Returns start, start + 1, ... of each run, one run after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    runs: Indices = np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
    return runs


class _Fill(torch.autograd.Function):
    """Writes to the buffer and returns it, differentiable in the values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, buffer: Tensor, fill: Callable[[], Tensor]) -> Tensor:
        ctx.sources = fill()
        ctx.shape = values.shape
        ctx.mark_dirty(buffer)
        return buffer

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (gradient,) = gradients
        is_written = ctx.sources >= 0
        to_values = to_buffer = None
        if ctx.needs_input_grad[0]:
            to_values = gradient.new_zeros(ctx.shape.numel())
            to_values = to_values.index_add(0, ctx.sources[is_written], gradient[is_written]).reshape(ctx.shape)
        if ctx.needs_input_grad[1]:
            to_buffer = gradient.masked_fill(is_written, 0.0)
        return to_values, to_buffer, None


def fill_with_gradient(values: Tensor, buffer: Tensor, fill: Callable[[], Tensor]) -> Tensor:
    """Returns the buffer after `fill` wrote the values to it; `fill` returns what `sources_of_places` does."""
    filled: Tensor = _Fill.apply(values, buffer, fill)  # type: ignore[no-untyped-call]  # torch has no types for it
    return filled
