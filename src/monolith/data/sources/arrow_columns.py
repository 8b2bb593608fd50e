"""Conversion of Arrow's columns to those of a `Batch`, without a copy where the types allow it.

| Arrow | Batch | where a value is missing |
|---|---|---|
| integers, booleans, timestamps and dates of integers | int64 tensor [rows] | 0, with a warning |
| floats, decimals | float32 tensor [rows]; doubles are narrowed | NaN |
| string, list of strings or binaries | `Ragged` of int64: the ids of the strings, see `text_ids` | no id |
| list of integers | `Ragged` of int64 | an empty row; no value |
| list of floats | `Ragged` of float32 | an empty row; NaN |
| list of lists of these numbers | `Ragged` of `Ragged` | an empty row |
| fixed-size list of numbers | tensor [rows, width] | an error |
| binary | list of bytes | empty |
| dictionary of any of these | as what it stands for | |

Other types, such as structs, are not supported in a batch.
"""

from __future__ import annotations

import enum
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from monolith import _core, ids
from monolith.data.sources.arrow import pa
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from typing import Self

    import numpy.typing as npt
    from torch import Tensor

    from monolith.data.batch import ColumnValues


def are_texts(kind: pa.DataType) -> bool:
    """Returns whether a type of Arrow is that of texts, in whatever form."""
    if pa.types.is_dictionary(kind):
        return are_texts(kind.value_type)
    is_view = getattr(pa.types, "is_string_view", lambda _: False)  # from Arrow 16 on
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_view(kind))


def text_column(array: pa.Array, column: str) -> Ragged:
    """Returns the ids of texts, a dictionary of texts, or lists of these: a row for each value. A null has no id."""
    if not _is_list(array.type):
        return ragged_of_present(_ids_of_texts(array, column), array, np.arange(len(array) + 1, dtype=np.int64))
    values, splits = _end_to_end(array)
    return ragged_of_present(_ids_of_texts(values, column), values, splits)


def ragged_of_present(numbers: npt.NDArray[Any], array: pa.Array, splits: npt.NDArray[np.int64]) -> Ragged:
    """Rows of numbers, one for each value of an array, without those that stand for a null of it."""
    if array.null_count:
        is_there = array.is_valid().to_numpy(zero_copy_only=False)
        splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_there, dtype=np.int64)])[splits]
        numbers = numbers[is_there]
    return Ragged(torch.from_numpy(numbers), torch.from_numpy(splits), validate=False)


def _ids_of_texts(array: pa.Array, column: str) -> npt.NDArray[np.int64]:
    """Returns an id for each value; that of a null means nothing."""
    if pa.types.is_dictionary(array.type):
        places = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        known = _ids_of_texts(array.dictionary, column)
        return known[places] if len(known) else np.zeros(len(places), np.int64)
    is_narrow = pa.types.is_string(array.type) or pa.types.is_binary(array.type)
    if not (is_narrow or pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_string())  # views
    width: Any = np.int32 if is_narrow else np.int64
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(0, np.int64)
    window = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    return _core.text_ids(column, np.frombuffer(b"" if data is None else data, np.uint8), window)


_LOG = logging.getLogger(__name__)


class ColumnType(enum.Enum):
    """Declared content of a column; except for ``ids`` and ``text``, the names are those of ByteDance Monolith."""

    ANY = "any"
    """The type in the file."""
    IDS = "ids"
    """Ids: integers unchanged, strings by their hash; always a `Ragged`, in which a missing value has no id."""
    TEXT = "text"
    """Texts by their hash, even where all of them look like numbers."""
    INT = "int"
    FID_V1 = "fid_v1"
    """Ids of the v1 layout, turned into v2."""
    FID_V2 = "fid_v2"
    FLOAT = "float"
    """Numbers; integers become floats."""
    BYTES = "bytes"

    @classmethod
    def of(cls, name: str | Self) -> Self:
        """Returns the type of this name, in any case."""
        if isinstance(name, cls):
            return name
        try:
            return cls(str(name).lower())
        except ValueError:
            raise ValueError(f"column type must be one of {', '.join(t.value for t in cls)}, got {name!r}") from None


def has_place(kind: pa.DataType) -> bool:
    """Returns whether columns of a type of Arrow can be in a batch, by the table above."""
    if pa.types.is_dictionary(kind):
        return has_place(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return _are_numbers(kind.value_type)
    depth = 0
    while _is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if _have_texts(kind):
        return depth <= 1
    return _are_numbers(kind) or (depth == 0 and (pa.types.is_null(kind) or _are_bytes(kind)))


def hashes_texts(kind: pa.DataType, column_type: ColumnType) -> bool:
    """Returns whether `batch_column` makes ids of texts for this type of Arrow."""
    if column_type not in {ColumnType.ANY, ColumnType.IDS, ColumnType.TEXT}:
        return False
    is_list = _is_list(kind)
    if pa.types.is_null(kind) or (column_type is ColumnType.TEXT and not is_list):
        return True
    if column_type is ColumnType.ANY and not is_list:
        return are_texts(kind)
    return _have_texts(kind.value_type if is_list else kind)


def batch_column(array: pa.Array, column_type: ColumnType, place: str, *, name: str = "") -> ColumnValues:
    """Returns the values of a column; refuses a type that has no place in a batch, or another one than wanted.

    `place` is file and column, for messages. The ids of texts depend on the name of the column.
    """
    if pa.types.is_null(array.type):
        array = array.cast(pa.string())
    if column_type in {ColumnType.IDS, ColumnType.TEXT}:
        return _ids(array, column_type, place, name)
    if pa.types.is_dictionary(array.type) and not (column_type is ColumnType.ANY and are_texts(array.type)):
        array = array.dictionary_decode()
    if column_type is ColumnType.ANY:
        return _any(array, place, name)
    if column_type is ColumnType.FLOAT and not pa.types.is_nested(array.type) and array.null_count:
        array = array.cast(pa.float32(), safe=False)
    values = _values(array, place)
    kind = "bytes" if isinstance(values, list) else "float" if values.dtype == torch.float32 else "int"
    if column_type.value == kind or (column_type is ColumnType.FID_V2 and kind == "int"):
        return values
    if isinstance(values, list) or kind != "int" or column_type is ColumnType.BYTES:
        raise InvalidArgumentError(
            f"{place}: expected {column_type.value}, got {array.type}; ask for another type, or leave the type out"
        )
    flat = values.flat_values if isinstance(values, Ragged) else values
    converted = flat.float() if column_type is ColumnType.FLOAT else ids.v1_to_v2(flat)
    return values.with_flat_values(converted) if isinstance(values, Ragged) else converted


def _any(array: pa.Array, place: str, name: str) -> ColumnValues:
    kind = array.type
    is_list = _is_list(kind)
    if are_texts(kind) or (is_list and _have_texts(kind.value_type)):
        return text_column(array, name)
    if array.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind)):
        if name not in _WARNED:
            _WARNED.add(name)
            text = "%s: %d integers are missing in a block and are read as 0. Use 'float' for NaN, or 'ids' for no id"
            _LOG.warning(text, place, array.null_count)
        integers = array if pa.types.is_integer(kind) else _as_numbers(array, place)
        return _numbers(integers.fill_null(0), place)
    return _values(array, place)


_WARNED: set[str] = set()
"""Columns with missing values that were warned of: one warning for all blocks and files."""


def _ids(array: pa.Array, column_type: ColumnType, place: str, name: str) -> Ragged:
    kind = array.type
    is_list = _is_list(kind)
    inner = kind.value_type if is_list else kind
    if _have_texts(inner):
        return text_column(array, name)
    if column_type is ColumnType.TEXT and not is_list and not pa.types.is_nested(inner):
        return text_column(array.cast(pa.large_string()), name)
    if pa.types.is_floating(inner) and not is_list:
        with suppress(pa.ArrowInvalid):  # pandas stores integers with missing values as floats
            array = array.cast(pa.int64())
            inner = array.type
    if not (pa.types.is_integer(inner) or pa.types.is_boolean(inner)):
        raise InvalidArgumentError(
            f"{place}: expected {column_type.value}: texts or integers, got {kind}; ask for another type, such as"
            " float, or leave the type out"
        )
    if is_list:
        return _ragged(array, place)
    whole = array.cast(pa.int64()) if pa.types.is_boolean(inner) else array
    values = _numbers(whole.fill_null(0), place).numpy()
    return ragged_of_present(values, array, np.arange(len(array) + 1, dtype=np.int64))


def _values(array: pa.Array, place: str) -> ColumnValues:
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):  # the most common first
        return _numbers(array, place)
    if _is_list(kind):
        return _ragged(array, place)
    if pa.types.is_fixed_size_list(kind):
        if array.null_count:
            raise _nulls(array, place)
        inner = _values(array.flatten(), place)
        if not isinstance(inner, torch.Tensor):
            raise InvalidArgumentError(f"{place}: a {kind} has no place in a batch; use a list of numbers")
        return inner.view(len(array), kind.list_size, *inner.shape[1:])
    if _are_bytes(kind) or are_texts(kind):
        as_bytes = array.cast(pa.binary() if pa.types.is_fixed_size_binary(kind) else pa.large_binary())
        return [b"" if value is None else value for value in as_bytes.to_pylist()]
    return _numbers(_as_numbers(array, place), place)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _are_numbers(kind: pa.DataType) -> bool:
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return bool(is_number or pa.types.is_boolean(kind) or pa.types.is_temporal(kind))


def _have_texts(kind: pa.DataType) -> bool:
    return are_texts(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _are_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _as_numbers(array: pa.Array, place: str) -> pa.Array:
    kind = array.type
    if pa.types.is_decimal(kind):
        return array.cast(pa.float64())
    if pa.types.is_boolean(kind):
        return array.cast(pa.int64())
    if pa.types.is_temporal(kind):
        return array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    raise InvalidArgumentError(
        f"{place}: a {kind} has no place in a batch; expected numbers, bytes, or lists of numbers"
    )


def _end_to_end(lists: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Returns the values of all lists, and where each list begins and ends; a null is an empty list."""
    if lists.null_count:
        # A null may still have child values; an empty list has none.
        lists = lists.fill_null(pa.scalar([], type=lists.type))
    splits = lists.offsets.to_numpy(zero_copy_only=True).astype(np.int64)
    begin, end, values = int(splits[0]), int(splits[-1]), lists.values
    if begin:
        splits -= begin
    return values if end - begin == len(values) else values.slice(begin, end - begin), splits


def _ragged(array: pa.Array, place: str) -> Ragged:
    values, splits = _end_to_end(array)
    if values.null_count and pa.types.is_integer(values.type):
        return ragged_of_present(_numbers(values.fill_null(0), place).numpy(), values, splits)
    inner = _values(values, place)
    if isinstance(inner, list):
        raise InvalidArgumentError(f"{place}: a {array.type} has no place in a batch; use a list of numbers")
    return Ragged(inner, torch.from_numpy(splits), validate=False)


def _numbers(array: pa.Array, place: str) -> Tensor:
    """Returns a tensor on read-only memory of Arrow, or a copy if the numbers must be converted."""
    if array.null_count and array.type in {"float", "double", "halffloat"}:
        array = array.fill_null(float("nan"))
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
        "expected an integer: use float, which has NaN, ids, which may be missing, or no type"
    )
