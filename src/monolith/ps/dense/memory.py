"""Memory for pulled weights: undivided weights of each server adjacent, as they arrive; divided weights separate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint.staging import large_buffer
from monolith.ps.dense.layout import regions_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

    from monolith.ps.dense.layout import DenseLayout

__all__ = ["DenseMemory"]


class DenseMemory:
    """One copy of all weights of a layout, which answers are written to directly. Owned by the training thread."""

    def __init__(self, layout: DenseLayout) -> None:
        pieces = layout.pieces
        self.values: dict[str, Tensor] = {}
        """The weights by name, in the memory that answers are written to."""
        self._places: list[list[Tensor]] = []
        for name, parts in pieces.items():
            if parts[0].begin is not None:
                shape = (sum(each.shape[0] for each in parts), *parts[0].shape[1:])
                self.values[name] = _shaped(
                    large_buffer(sum(each.bytes for each in parts)), shape, parts[0].torch_dtype
                )
        for server in layout.servers:
            wholes, *divided = regions_of(server)
            flat, offset = large_buffer(sum(each.bytes for each in wholes)), 0
            for piece in wholes:
                raw = flat[offset : offset + piece.bytes]
                self.values[piece.name] = _shaped(raw, piece.shape, piece.torch_dtype)
                offset += piece.bytes
            self._places.append([flat, *(_bytes(self.values[each.name][each.rows]) for (each,) in divided)])

    def places(self) -> Iterator[tuple[int, int, Any]]:
        """Yields server, region, and the memory for its bytes; skips empty regions."""
        for server, places in enumerate(self._places):
            for region, place in enumerate(places):
                if place.numel():
                    yield server, region, place.numpy()

    def copy_from(self, other: DenseMemory) -> None:
        """Copies all values of another memory with the same layout."""
        for mine, theirs in zip(self._places, other._places, strict=True):
            for place, value in zip(mine, theirs, strict=True):
                place.copy_(value)

    def show_in(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Makes the parameters show these values: as views or, on other devices and for other strides, as copies."""
        for name, parameter in parameters.items():
            value = self.values[name]
            if parameter.data_ptr() == value.data_ptr() and parameter.is_contiguous():
                continue
            if parameter.device.type == "cpu" and parameter.is_contiguous():
                parameter.data = value
            else:
                parameter.data.copy_(value)


def _shaped(raw: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return raw.view(dtype).view(shape) if raw.numel() else torch.empty(shape, dtype=dtype)


def _bytes(value: Tensor) -> Tensor:
    return value.view(-1).view(torch.uint8)
