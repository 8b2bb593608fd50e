"""Trees of plain values and tensors as one byte array, to be moved in chunks: an index, then the tensors.

The index is JSON, padded with spaces to `_ALIGNMENT`; every tensor begins at a multiple of it, so that both ends can
use the bytes in place.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.checkpoint import TreeEncoder, decode, large_buffer
from monolith.errors import DataLossError, ResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackedState:
    """Bytes of a tree, and the size of their index."""

    data: Tensor
    """uint8."""
    index_bytes: int


def pack(tree: Mapping[str, Any], spare: Tensor | None = None) -> PackedState:
    """Copies a tree; into the memory of `spare`, if that is large enough."""
    encoder = TreeEncoder()
    encoded = encoder.encode(tree, "")
    tensors, offset = [], 0
    for name, tensor in encoder.tensors.items():
        tensors.append({"name": name, "dtype": _name(tensor.dtype), "shape": list(tensor.shape), "offset": offset})
        offset += _padded(tensor.numel() * tensor.element_size())
    index = json.dumps({"tree": encoded, "tensors": tensors}, separators=(",", ":")).encode()
    index = index.ljust(_padded(len(index)))
    total = len(index) + offset
    data = spare[:total] if spare is not None and spare.numel() >= total else room_for(total)
    data[: len(index)].copy_(torch.frombuffer(bytearray(index), dtype=torch.uint8))
    for place, tensor in zip(_views(tensors, data[len(index) :]).values(), encoder.tensors.values(), strict=True):
        place.copy_(tensor)
    return PackedState(data, len(index))


def unpack(data: Tensor, index_bytes: int) -> dict[str, Any]:
    """Returns the tree; its tensors are views of `data`.

    Raises:
        DataLossError: the bytes are not a result of `pack`.
    """
    try:
        index = json.loads(bytes(data[:index_bytes].numpy()))
        tree = decode(index["tree"], _views(index["tensors"], data[index_bytes:]))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise DataLossError(f"dense weights: the bytes of a state are not what was sent: {error!r}") from error
    if not isinstance(tree, dict):
        raise DataLossError(f"dense weights: expected a state, got {type(tree).__name__}")
    return tree


def room_for(size: int) -> Tensor:
    """Allocates memory for `size` bytes.

    Raises:
        ResourceExhaustedError: there is not enough memory.
    """
    try:
        return large_buffer(size)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ResourceExhaustedError(f"dense weights: no memory for a state of {size} bytes: {error}") from error


def _views(tensors: list[dict[str, Any]], flat: Tensor) -> dict[str, Tensor]:
    views = {}
    for entry in tensors:
        dtype = getattr(torch, str(entry["dtype"]), None)
        shape, offset = tuple(map(int, entry["shape"])), int(entry["offset"])
        if not isinstance(dtype, torch.dtype) or min((*shape, offset)) < 0:
            raise ValueError(f"not a tensor: {entry!r}")
        size = math.prod(shape) * dtype.itemsize
        if offset + size > flat.numel():
            raise ValueError(f"a tensor ends at byte {offset + size} of {flat.numel()}: {entry!r}")
        # torch cannot view an empty byte tensor as another type.
        raw = flat[offset : offset + size]
        views[str(entry["name"])] = raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
    return views


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT
