"""The result of a lookup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EmbeddingOutputs"]


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
