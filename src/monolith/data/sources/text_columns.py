"""Arrow's texts as ids, from buffer to buffer: no Python object is made for a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith import _core
from monolith.tensors import Ragged

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["are_texts", "ragged_of_present", "text_column"]


def are_texts(kind: pa.DataType) -> bool:
    """Returns whether a type of Arrow is that of texts, in whatever form."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if pa.types.is_dictionary(kind):
        return are_texts(kind.value_type)
    is_view = getattr(pa.types, "is_string_view", lambda _: False)  # from Arrow 16 on
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_view(kind))


def text_column(array: pa.Array, column: str) -> Ragged:
    """Returns the ids of strings or of lists of strings: a row for each value of the array. A null has no id.

    Args:
        array: Texts, a dictionary of texts, or lists of these; bytes are as good.
        column: Whose ids they are.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        return ragged_of_present(_ids(array, column), array, np.arange(len(array) + 1, dtype=np.int64))
    if array.null_count:
        # A null may still have child values; an empty list has none.
        array = array.fill_null(pa.scalar([], type=array.type))
    offsets = array.offsets.to_numpy(zero_copy_only=True).astype(np.int64)
    values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    return ragged_of_present(_ids(values, column), values, offsets - offsets[0])


def ragged_of_present(numbers: npt.NDArray[Any], array: pa.Array, splits: npt.NDArray[np.int64]) -> Ragged:
    """Rows of numbers, one for each value of an array, without those that stand for a null of it."""
    if array.null_count:
        is_there = array.is_valid().to_numpy(zero_copy_only=False)
        splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_there, dtype=np.int64)])[splits]
        numbers = numbers[is_there]
    return Ragged(torch.from_numpy(numbers), torch.from_numpy(splits), validate=False)


def _ids(array: pa.Array, column: str) -> npt.NDArray[np.int64]:
    """Returns an id for each value; that of a null means nothing."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if pa.types.is_dictionary(array.type):
        places = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        known = _ids(array.dictionary, column)
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
