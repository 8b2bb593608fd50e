"""Encodes columns of a request as features of Examples.

Encoded features of an example are concatenated. Columns with the same number of values in each example are encoded as
arrays: building messages would take four times as long while holding the GIL, which answers need.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.tensors import Ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["ExampleFeatures"]

_NAMED_FEATURE, _NAME, _FEATURE, _VALUES = b"\x0a", b"\x0a", b"\x12", b"\x0a"
"""Tags of Example, NamedFeature and every list of values; each is a length-delimited field."""
_IDS, _FLOATS, _DOUBLES, _INTS, _TEXTS = b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x32"
"""Tags of the kinds of a Feature: fid_v2_list, float_list, double_list, int64_list, bytes_list."""


class ExampleFeatures:
    """The features of some examples, added column by column. Not thread-safe.

    A column has a row for each example, or one for all; the shape of a row is not kept.
    """

    def __init__(self, num_examples: int) -> None:
        self._count = num_examples
        self._blocks: list[NDArray[np.uint8]] = []
        self._loose: list[list[bytes]] = []

    def add_numbers(self, name: str, column: Tensor | Ragged, *, is_ids: bool = False) -> None:
        """Adds a column of ids, real numbers or integers."""
        if isinstance(column, Ragged):
            values, splits = column.flat_values, column.row_splits.tolist()
        else:
            values, splits = column.reshape(-1), None
        kind, array = _packed_values(values.detach(), is_ids=is_ids)
        num_rows = column.num_rows if isinstance(column, Ragged) else column.shape[0]
        heads = _Heads(name, kind)
        if splits is None and kind != _INTS:
            rows = array.view(np.uint8).reshape(num_rows, -1)
            self._blocks += (np.frombuffer(heads[rows.shape[1]], np.uint8)[None], rows)
            return
        if splits is None:
            width = len(array) // num_rows if num_rows else 0
            splits = [width * row for row in range(num_rows + 1)]
        if kind == _INTS:
            numbers = array.tolist()
            self._add_loose(heads, [b"".join(map(_varint, numbers[begin:end])) for begin, end in pairwise(splits)])
        else:
            data, size = array.tobytes(), array.itemsize
            self._add_loose(heads, [data[begin * size : end * size] for begin, end in pairwise(splits)])

    def add_texts(self, name: str, texts: list[bytes]) -> None:
        """Adds a column of texts."""
        self._add_loose(_Heads(name, _TEXTS), texts)

    def rows(self) -> list[bytes]:
        """Returns the features of each example, as bytes of an Example."""
        columns = list(self._loose)
        if self._blocks:
            width = sum(block.shape[1] for block in self._blocks)
            joined = np.empty((self._count, width), np.uint8)
            at = 0
            for block in self._blocks:
                joined[:, at : at + block.shape[1]] = block
                at += block.shape[1]
            data = joined.tobytes()
            columns.insert(0, [data[begin : begin + width] for begin in range(0, self._count * width, width)])
        return [b"".join(parts) for parts in zip(*columns, strict=True)] if columns else [b""] * self._count

    def _add_loose(self, heads: _Heads, values: list[bytes]) -> None:
        rows = [heads[len(each)] + each for each in values]
        self._loose.append(rows * self._count if len(rows) == 1 else rows)


class _Heads(dict[int, bytes]):
    """Size of a value -> the bytes that precede it in a feature."""

    def __init__(self, name: str, kind: bytes) -> None:
        super().__init__()
        text = name.encode("utf-8", "surrogatepass")
        self._name = _NAME + _varint(len(text)) + text
        self._kind = kind

    def __missing__(self, size: int) -> bytes:
        head = _VALUES + _varint(size)
        for before in (self._kind, self._name + _FEATURE, _NAMED_FEATURE):  # from the innermost message outwards
            head = before + _varint(len(head) + size) + head
        self[size] = head
        return head


def _packed_values(values: Tensor, *, is_ids: bool) -> tuple[bytes, NDArray[np.generic]]:
    """Returns the kind of feature, and an array whose bytes encode its values."""
    if is_ids:
        return _IDS, values.numpy().astype("<i8", copy=False)
    if values.dtype is torch.float64:
        return _DOUBLES, values.numpy().astype("<f8", copy=False)
    if values.is_floating_point():
        return _FLOATS, values.float().numpy().astype("<f4", copy=False)
    return _INTS, values.long().numpy()


def _varint(value: int) -> bytes:
    """Encodes a number as a protobuf varint; a negative one as its 64-bit two's complement."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
