"""Columns of Parquet that hold typed fields: ``__LABEL__``, and ``__<FIELD>__`` for a field of LineId.

They become what `Label` and `LineIdField` give for samples, under the same names, so that a model does not depend on
the format of its rows. A null is a missing field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.data.columns import INVALID_LABEL
from monolith.data.conversions import LABEL_FEATURE
from monolith.data.sources.arrow_columns import ColumnType, batch_column
from monolith.data.tf_conversions import LINE_ID_COLUMNS
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    import pyarrow as pa

    from monolith.data.batch import ColumnValues

__all__ = ["is_reserved", "label_column", "reserved_column"]


def is_reserved(name: str) -> bool:
    """Returns whether a column of this name stands for a typed field."""
    return name == LABEL_FEATURE or name in LINE_ID_COLUMNS


def reserved_column(name: str, array: pa.Array, num_labels: int, place: str) -> tuple[str, ColumnValues]:
    """Returns the name and values of the field.

    Raises:
        InvalidArgumentError: values that are not of the field's kind.
    """
    if name == LABEL_FEATURE:
        return "label", label_column(array, num_labels, place)
    field = LINE_ID_COLUMNS[name]
    if field.cpp_type == field.CPPTYPE_STRING:
        wanted = ColumnType.BYTES
    else:
        wanted = ColumnType.FLOAT if field.cpp_type == field.CPPTYPE_FLOAT else ColumnType.INT
    if not field.is_repeated and wanted is not ColumnType.BYTES:
        # sample_rate, the only float of a LineId, is 1 by default.
        array = _without_nulls(array, 1 if wanted is ColumnType.FLOAT else 0)
    values = batch_column(array, wanted, place)
    if isinstance(values, Ragged) != field.is_repeated or (isinstance(values, Tensor) and values.ndim > 1):
        expected = "a list for each row" if field.is_repeated else "one value for each row"
        raise InvalidArgumentError(f"{place}: the field {field.name!r} of LineId has {expected}, got {array.type}")
    return field.name, values


def label_column(array: pa.Array, num_labels: int, place: str) -> Tensor:
    """Labels as float32 [rows, num_labels]; `INVALID_LABEL` where there is none."""
    values = batch_column(_without_nulls(array, INVALID_LABEL), ColumnType.FLOAT, place)
    if isinstance(values, Ragged):
        if values.ragged_rank > 1:
            raise InvalidArgumentError(f"{place}: labels are numbers or lists of numbers, got {array.type}")
        return values.to_padded(fill=INVALID_LABEL, length=num_labels)
    labels = torch.full((len(values), num_labels), INVALID_LABEL)
    given = torch.as_tensor(values)
    given = (given.unsqueeze(1) if given.ndim == 1 else given.flatten(1))[:, :num_labels]
    labels[:, : given.shape[1]] = given
    return labels


def _without_nulls(array: pa.Array, value: float) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    kind: Any = array.type
    if not array.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or kind == pa.bool_()):
        return array
    if value == INVALID_LABEL:
        array = array.cast(pa.float32())
    return array.fill_null(pa.scalar(value, type=array.type))
