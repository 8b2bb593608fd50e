"""Serialization of a batch between processes: all its columns in one piece.

Torch passes tensors of worker processes one by one, each with a descriptor and some messages of its own, which for a
batch of many small columns takes longer than making them. In one piece it is one descriptor, or none if it is small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monolith.data.batch import ColumnValues

__all__ = ["pack_columns", "unpack_columns"]

_ALIGNMENT = 64
_MOST_IN_A_MESSAGE = 1 << 18
"""Bytes; more are worth a descriptor."""


def pack_columns(columns: Mapping[str, ColumnValues]) -> tuple[Any, Any]:
    """Returns the bytes of all tensors, and their layout; tensors of other devices are unchanged."""
    tensors = [tensor for values in columns.values() for tensor in _tensors(values)]
    if not all(tensor.device.type == "cpu" and not tensor.requires_grad for tensor in tensors):
        return None, dict(columns)
    sizes = [-(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    packed = torch.empty(sum(sizes), dtype=torch.uint8)
    places: Iterator[tuple[int, Tensor]] = iter(zip(_starts(sizes), tensors, strict=True))
    form = {name: _packed(values, packed, places) for name, values in columns.items()}
    return (packed.numpy().tobytes() if len(packed) <= _MOST_IN_A_MESSAGE else packed), form


def unpack_columns(packed: Any, form: Any) -> dict[str, ColumnValues]:
    """Returns the columns that were passed to `pack_columns`; tensors are views of shared memory."""
    if packed is None:
        return dict(form)
    if isinstance(packed, bytes):
        packed = torch.frombuffer(bytearray(packed), dtype=torch.uint8) if packed else torch.empty(0, dtype=torch.uint8)
    return {name: _unpacked(values, packed) for name, values in form.items()}


def _starts(sizes: list[int]) -> Iterator[int]:
    start = 0
    for size in sizes:
        yield start
        start += size


def _tensors(values: ColumnValues) -> Iterator[Tensor]:
    if isinstance(values, Ragged):
        yield values.row_splits
        yield from _tensors(values.values)
    elif isinstance(values, Tensor):
        yield values


def _packed(values: ColumnValues, packed: Tensor, places: Iterator[tuple[int, Tensor]]) -> Any:
    if isinstance(values, Ragged):
        return "ragged", _packed(values.row_splits, packed, places), _packed(values.values, packed, places)
    if not isinstance(values, Tensor):
        return "as it is", values
    start, tensor = next(places)
    size = tensor.numel() * tensor.element_size()
    packed[start : start + size] = tensor.contiguous().reshape(-1).view(torch.uint8)
    return "tensor", start, tensor.dtype, tuple(tensor.shape)


def _unpacked(form: Any, packed: Tensor) -> Any:
    kind, *rest = form
    if kind == "ragged":
        splits, values = (_unpacked(part, packed) for part in rest)
        return Ragged(values, splits, validate=False)
    if kind == "as it is":
        return rest[0]
    start, dtype, shape = rest
    size = torch.Size(shape).numel() * dtype.itemsize
    return packed[start : start + size].view(dtype).reshape(shape)
