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
    kind = "bytes" if isinstance(values, list) else "float" if values.dtype == torch.float32 else "int"
    return _as_wanted(values, kind, wanted, f"{place}: expected {wanted.value}, got {array.type}")


def _as_wanted(values: ColumnValues, kind: str, wanted: ColumnType, problem: str) -> ColumnValues:
    if wanted is ColumnType.ANY or wanted.value == kind or (wanted is ColumnType.FID_V2 and kind == "int"):
        return values
    if isinstance(values, list) or kind != "int" or wanted is ColumnType.BYTES:
        raise InvalidArgumentError(f"{problem}; ask for another type, or leave the type out")
    flat = values.flat_values if isinstance(values, Ragged) else values
    return _with_flat(values, flat.float() if wanted is ColumnType.FLOAT else ids.v1_to_v2(flat))


def _with_flat(values: Tensor | Ragged, flat: Tensor) -> Tensor | Ragged:
    if not isinstance(values, Ragged):
        return flat
    inner = values.values
    return values.with_values(_with_flat(inner, flat) if isinstance(inner, Ragged) else flat)


def _values(array: pa.Array, pa: Any, place: str) -> ColumnValues:
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _ragged(array, pa, place)
    if pa.types.is_fixed_size_list(kind):
        _refuse_nulls(array, place)
        inner = _values(array.flatten(), pa, place)
        if not isinstance(inner, torch.Tensor):
            raise InvalidArgumentError(f"{place}: a {kind} has no place in a batch; use a list of numbers")
        return inner.view(len(array), kind.list_size, *inner.shape[1:])
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind):
        return _texts(array, pa.binary())
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return _texts(array, pa.large_binary())
    return _numbers(array, pa, place)


def _texts(array: pa.Array, kind: pa.DataType) -> list[bytes]:
    return [b"" if value is None else value for value in array.cast(kind).to_pylist()]


def _ragged(array: pa.Array, pa: Any, place: str) -> Ragged:
    if array.null_count:
        # A null may still have values behind it; as an empty list it has none.
        array = array.fill_null(pa.scalar([], type=array.type))
    offsets = array.offsets.to_numpy(zero_copy_only=True)
    inner = _values(array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])), pa, place)
    if isinstance(inner, list):
        raise InvalidArgumentError(f"{place}: a {array.type} has no place in a batch; use a list of numbers")
    splits = offsets.astype(np.int64)
    if splits[0]:
        splits -= splits[0]
    return Ragged(inner, torch.from_numpy(splits), validate=False)


def _numbers(array: pa.Array, pa: Any, place: str) -> Tensor:
    kind = array.type
    _refuse_nulls(array, place)
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_temporal(kind):
        array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InvalidArgumentError(
            f"{place}: a {kind} has no place in a batch; expected numbers, bytes, or lists of numbers"
        )
    numbers = array.to_numpy(zero_copy_only=True)
    if numbers.dtype == np.uint64:  # the bits of an id, of which the highest may be set
        numbers = numbers.view(np.int64)
    return _tensor(numbers.astype(np.float32 if numbers.dtype.kind == "f" else np.int64, copy=False))


def _tensor(numbers: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of memory that Arrow owns and nobody writes to; torch cannot say "read only", and warns of it."""
    if numbers.flags.writeable or not numbers.size:
        return torch.from_numpy(numbers) if numbers.size else torch.from_numpy(numbers.copy())
    pointer = numbers.__array_interface__
    pointer = {**pointer, "data": (pointer["data"][0], False)}
    return torch.from_numpy(np.asarray(_Writable(numbers, pointer)))


class _Writable:
    """Keeps an array alive under another description of its memory."""

    def __init__(self, array: np.ndarray[Any, Any], interface: dict[str, Any]) -> None:
        self._array = array
        self.__array_interface__ = interface


def _refuse_nulls(array: pa.Array, place: str) -> None:
    if array.null_count:
        first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataLossError(
            f"{place}: {array.null_count} nulls, the first in row {first} of its block; "
            "a number must stand there (a null list is an empty row)"
        )
