"""From Arrow's columns to those of a `Batch`, without a copy where the types allow it.

| Arrow | Batch |
|---|---|
| integers, booleans, timestamps and dates of whole numbers | int64 tensor [rows] |
| floats | float32 tensor [rows]; doubles are narrowed |
| list of integers | `Ragged` of int64; a null is an empty row |
| list of floats | `Ragged` of float32 |
| list of lists of these | `Ragged` of `Ragged` |
| fixed-size list of these | tensor [rows, width] |
| binary, string | list of bytes; a null is empty |
| dictionary of any of these | as what it stands for |
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from monolith import ids
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from typing import Self

    import pyarrow as pa
    from torch import Tensor

    from monolith.data.batch import ColumnValues

__all__ = ["ColumnType", "batch_column"]


class ColumnType(enum.Enum):
    """What a column is said to hold; the names are the original's."""

    ANY = "any"
    """Whatever the file says."""
    INT = "int"
    FID_V1 = "fid_v1"
    """Ids of the v1 layout, turned into v2."""
    FID_V2 = "fid_v2"
    FLOAT = "float"
    """Numbers; whole ones become floats."""
    BYTES = "bytes"

    @classmethod
    def of(cls, name: str | Self) -> Self:
        """The type of this name, in any case."""
        if isinstance(name, cls):
            return name
        try:
            return cls(str(name).lower())
        except ValueError:
            raise ValueError(f"column type must be one of {', '.join(t.value for t in cls)}, got {name!r}") from None


def batch_column(array: pa.Array, wanted: ColumnType, place: str) -> ColumnValues:
    """The values of a column.

    Args:
        array: Of Arrow.
        wanted: What the column must hold.
        place: File and column, for messages.

    Raises:
        InvalidArgumentError: a type that has no place in a batch, or another one than wanted.
        DataLossError: a null where a number must stand.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    values = _values(array, pa, place)
    if wanted is ColumnType.ANY:
        return values
    kind = "bytes" if isinstance(values, list) else "float" if values.dtype == torch.float32 else "int"
    if wanted.value == kind or (wanted is ColumnType.FID_V2 and kind == "int"):
        return values
    if isinstance(values, list) or kind != "int" or wanted is ColumnType.BYTES:
        raise InvalidArgumentError(
            f"{place}: expected {wanted.value}, got {array.type}; ask for another type, or leave the type out"
        )
    flat = values.flat_values if isinstance(values, Ragged) else values
    return _with_flat(values, flat.float() if wanted is ColumnType.FLOAT else ids.v1_to_v2(flat))


def _with_flat(values: Tensor | Ragged, flat: Tensor) -> Tensor | Ragged:
    if not isinstance(values, Ragged):
        return flat
    inner = values.values
    return values.with_values(_with_flat(inner, flat) if isinstance(inner, Ragged) else flat)


def _values(array: pa.Array, pa: Any, place: str) -> ColumnValues:
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):  # the most common first
        return _numbers(array, place)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _ragged(array, pa, place)
    if pa.types.is_fixed_size_list(kind):
        if array.null_count:
            raise _nulls(array, place)
        inner = _values(array.flatten(), pa, place)
        if not isinstance(inner, torch.Tensor):
            raise InvalidArgumentError(f"{place}: a {kind} has no place in a batch; use a list of numbers")
        return inner.view(len(array), kind.list_size, *inner.shape[1:])
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind):
        return _texts(array, pa.binary())
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return _texts(array, pa.large_binary())
    return _numbers(_as_integers(array, pa, place), place)


def _as_integers(array: pa.Array, pa: Any, place: str) -> pa.Array:
    kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.int64())
    if pa.types.is_temporal(kind):
        return array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    raise InvalidArgumentError(
        f"{place}: a {kind} has no place in a batch; expected numbers, bytes, or lists of numbers"
    )


def _texts(array: pa.Array, kind: pa.DataType) -> list[bytes]:
    return [b"" if value is None else value for value in array.cast(kind).to_pylist()]


def _ragged(array: pa.Array, pa: Any, place: str) -> Ragged:
    if array.null_count:
        # A null may still have values behind it; as an empty list it has none.
        array = array.fill_null(pa.scalar([], type=array.type))
    offsets = array.offsets.to_numpy(zero_copy_only=True)
    begin, end = int(offsets[0]), int(offsets[-1])
    values = array.values
    inner = _values(values if end - begin == len(values) else values.slice(begin, end - begin), pa, place)
    if isinstance(inner, list):
        raise InvalidArgumentError(f"{place}: a {array.type} has no place in a batch; use a list of numbers")
    splits = offsets.astype(np.int64)
    if begin:
        splits -= begin
    return Ragged(inner, torch.from_numpy(splits), validate=False)


def _numbers(array: pa.Array, place: str) -> Tensor:
    """A tensor of memory that Arrow owns and nobody writes to, unless the numbers must become other ones."""
    if array.null_count:
        raise _nulls(array, place)
    numbers = from_dlpack(array)
    if numbers.dtype in {torch.int64, torch.float32}:
        return numbers
    if numbers.dtype == torch.uint64:  # the bits of an id, of which the highest may be set
        return numbers.view(torch.int64)
    return numbers.to(torch.float32 if numbers.dtype.is_floating_point else torch.int64)


def _nulls(array: pa.Array, place: str) -> DataLossError:
    first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
    return DataLossError(
        f"{place}: {array.null_count} nulls, the first in row {first} of its block; "
        "a number must stand there (a null list is an empty row)"
    )
