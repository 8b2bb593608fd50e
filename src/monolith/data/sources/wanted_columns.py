"""Which columns of a table a batch is made of, and what each of them is to hold.

The same words as everywhere: a name with a `ColumnType`, or a column as a `Parser` takes it (`Ids`, `DenseColumn`,
`Label` and others), which then is what a parser would make of a sample that has the values of the row as its feature.

Columns of Parquet hold typed fields under reserved names: ``__LABEL__``, and ``__<FIELD>__`` for a field of LineId.
They become what `Label` and `LineIdField` give for samples, under the same names, so that a model does not depend on
the format of its rows. A null is a missing field.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor

from monolith import ids
from monolith.data.batch import Batch
from monolith.data.columns import (
    INVALID_LABEL,
    Column,
    DenseColumn,
    FirstBytes,
    Floats,
    Ids,
    Ints,
    Label,
    LineIdField,
    NestedIds,
    Weight,
)
from monolith.data.conversions import LABEL_FEATURE
from monolith.data.sources.arrow import pa, pc
from monolith.data.sources.arrow_columns import ColumnType, batch_column, has_place, hashes_texts
from monolith.data.text_ids import TextColumn
from monolith.data.tf_conversions import LINE_ID_COLUMNS
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.data.batch import ColumnValues


def is_reserved(name: str) -> bool:
    """Returns whether a column of this name stands for a typed field."""
    return name == LABEL_FEATURE or name in LINE_ID_COLUMNS


def reserved_column(name: str, array: pa.Array, num_labels: int, place: str) -> tuple[str, ColumnValues]:
    """Returns the name and values of the field."""
    if name == LABEL_FEATURE:
        return "label", label_column(array, num_labels, place)
    field = LINE_ID_COLUMNS[name]
    if field.cpp_type == field.CPPTYPE_STRING:
        column_type = ColumnType.BYTES
    else:
        column_type = ColumnType.FLOAT if field.cpp_type == field.CPPTYPE_FLOAT else ColumnType.INT
    if not field.is_repeated and column_type is not ColumnType.BYTES:
        # sample_rate, the only float of a LineId, is 1 by default.
        array = _without_nulls(array, 1 if column_type is ColumnType.FLOAT else 0)
    values = batch_column(array, column_type, place)
    if isinstance(values, Ragged) != field.is_repeated or (isinstance(values, Tensor) and values.ndim > 1):
        expected = "a list for each row" if field.is_repeated else "one value for each row"
        raise InvalidArgumentError(f"{place}: the field {field.name!r} of LineId has {expected}, got {array.type}")
    return field.name, values


def label_column(array: pa.Array, num_labels: int, place: str) -> Tensor:
    """Returns labels as float32 [rows, num_labels]; `INVALID_LABEL` where there is none."""
    values = batch_column(_without_nulls(array, INVALID_LABEL), ColumnType.FLOAT, place)
    if isinstance(values, Ragged):
        if values.ragged_rank > 1:
            raise InvalidArgumentError(f"{place}: labels are numbers or lists of numbers, got {array.type}")
        return values.to_padded(fill=INVALID_LABEL, length=num_labels)
    labels = torch.full((len(values), num_labels), INVALID_LABEL)
    present = torch.as_tensor(values)
    present = (present.unsqueeze(1) if present.ndim == 1 else present.flatten(1))[:, :num_labels]
    labels[:, : present.shape[1]] = present
    return labels


def _without_nulls(array: pa.Array, value: float) -> pa.Array:
    kind: Any = array.type
    if not array.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or kind == pa.bool_()):
        return array
    if value == INVALID_LABEL:
        array = array.cast(pa.float32())
    return array.fill_null(pa.scalar(value, type=array.type))


Wanted: TypeAlias = ColumnType | Column
Columns: TypeAlias = "Iterable[str | Column] | Mapping[str, ColumnType | Column | str]"
"""Columns as specified by users: names, columns, or names with what each must hold."""

_LOG = logging.getLogger(__name__)
_REALS = (Floats, Label, Weight)
_TENSORS = (DenseColumn, Ints, NestedIds, *_REALS)


def wanted_columns(columns: Columns | None) -> dict[str, Wanted] | None:
    """Returns name -> what is wanted; None: all columns."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise TypeError(f"columns must be names or a mapping of names to types, got the text {columns!r}")
    kinds: dict[str, Wanted] = {}
    pairs = columns.items() if isinstance(columns, Mapping) else ((_name_of(column), column) for column in columns)
    for name, column in pairs:
        if name in kinds:
            raise ValueError(f"columns: {name!r} is requested twice")
        if isinstance(column, Column) and column.name != name:
            raise ValueError(f"columns: {name!r} is requested as {column!r}; give it the name {name!r}")
        is_name_alone = not isinstance(columns, Mapping) and isinstance(column, str)
        kinds[name] = (
            ColumnType.ANY if is_name_alone else column if isinstance(column, Column) else ColumnType.of(column)
        )
    return kinds


def _name_of(column: object) -> str:
    if isinstance(column, str | Column):
        return column.name if isinstance(column, Column) else column
    raise TypeError(f"columns: expected names or columns such as Ids('user'), got {column!r}")


def fitting_columns(
    schema: pa.Schema, columns: dict[str, Wanted] | None, place: str
) -> tuple[dict[str, Wanted], list[str]]:
    """Returns what is read of a table, and the columns that are skipped because a batch cannot hold their type."""
    if columns is None:
        fitting = {field.name: cast("Wanted", ColumnType.ANY) for field in schema if has_place(field.type)}
        return fitting, [field.name for field in schema if not has_place(field.type)]
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise InvalidArgumentError(
            f"{place}: there is no column {', '.join(map(repr, missing))}; it has {', '.join(schema.names)}"
        )
    return columns, []


_WARNED: set[tuple[str, ...]] = set()


def warn_of_left_out(path: str, names: Sequence[str], schema: pa.Schema) -> None:
    """Warns, once for the same columns, that they are not read."""
    if not names or tuple(names) in _WARNED:
        return
    _WARNED.add(tuple(names))
    kinds = ", ".join(f"{name!r} ({schema.field(name).type})" for name in names)
    _LOG.warning("%s: columns that have no place in a batch are skipped: %s", path, kinds)


def wanted_values(array: pa.Array, column: Wanted, *, name: str, place: str) -> ColumnValues:
    """Returns the values of a column, as `batch_column` or as a parser would make them."""
    if isinstance(column, ColumnType):
        return batch_column(array, column, place, name=name)
    if isinstance(column, Ids):
        return _ids(array, column, place)
    if isinstance(column, FirstBytes):
        return batch_column(array, ColumnType.BYTES, place)
    if isinstance(column, LineIdField):
        field_column = f"__{column.name.upper()}__"
        if field_column not in LINE_ID_COLUMNS:
            raise InvalidArgumentError(f"{place}: LineId has no field {column.name!r}")
        return reserved_column(field_column, array, 1, place)[1]
    if isinstance(column, Label):
        return label_column(array, column.width, place)
    if not isinstance(column, _TENSORS):
        raise TypeError(f"{place}: expected a column of monolith.data, got {column!r}")
    return _numbers(array, column, place)


def batch_of_table(table: pa.Table, columns: Mapping[str, Wanted], place: str, *, num_rows: int | None = None) -> Batch:
    """Returns these columns of a table as a batch; `place` begins messages, `num_rows` is checked."""
    values = {}
    for name, column in columns.items():
        chunks = table.column(name)
        array = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
        values[name] = wanted_values(array, column, name=name, place=f"{place}: column {name!r}")
    num_rows = table.num_rows if num_rows is None else num_rows
    return Batch(values, num_rows=num_rows, texts=text_columns(table.schema, columns))


def text_columns(schema: pa.Schema, columns: Mapping[str, Wanted]) -> dict[str, TextColumn]:
    """Returns the columns whose ids `wanted_values` makes of texts, and how."""
    texts = {}
    for name, column in columns.items():
        kind = schema.field(name).type
        if isinstance(column, Ids):
            if column.separator is not None or hashes_texts(kind, ColumnType.IDS):
                texts[name] = TextColumn(column.texts_of or name, column.separator, column.slot, column.length)
        elif isinstance(column, ColumnType) and hashes_texts(kind, column):
            texts[name] = TextColumn(name)
    return texts


def _ids(array: pa.Array, column: Ids, place: str) -> Ragged | Tensor:
    if column.separator is not None:
        if pa.types.is_nested(array.type):
            raise InvalidArgumentError(f"{place}: separator is for texts, got {array.type}; leave it out")
        texts = array.cast(pa.large_string())
        parts = pc.split_pattern(texts, column.separator)
        # An empty text is an empty list, not a list of an empty text.
        array = pc.if_else(pc.equal(texts, ""), pa.scalar([], type=parts.type), parts)
    values = batch_column(array, ColumnType.IDS, place, name=column.texts_of or column.name)
    ragged = cast("Ragged", values)
    if column.slot is not None:
        ragged = ragged.with_values(ids.pack_v2(column.slot, ragged.flat_values))
    return ragged if column.length is None else ragged.to_padded(length=column.length)


def _numbers(array: pa.Array, column: Column, place: str) -> Ragged | Tensor:
    """Converts columns of numbers: missing values are dropped, and then filled with the column's default."""
    if isinstance(column, NestedIds):
        nested = batch_column(array, ColumnType.INT, place)
        if not isinstance(nested, Ragged) or nested.ragged_rank != 2:
            raise InvalidArgumentError(f"{place}: NestedIds are lists of lists of integers, got {array.type}")
        return nested
    is_whole = isinstance(column, Ints) or (isinstance(column, DenseColumn) and column.dtype == "int64")
    ragged = _one_list_each(array, ColumnType.INT if is_whole else ColumnType.FLOAT, place)
    if isinstance(column, DenseColumn):
        return ragged.to_padded(length=column.width)
    if isinstance(column, Weight):
        weights = ragged.to_padded(length=1).reshape(-1)
        return torch.where(weights > 0, weights, torch.ones(()))
    return ragged


def _one_list_each(array: pa.Array, kind: ColumnType, place: str) -> Ragged:
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    is_there = None
    if not pa.types.is_nested(array.type) and array.null_count:
        is_there = torch.from_numpy(array.is_valid().to_numpy(zero_copy_only=False))
        array = array.drop_null()
    values = batch_column(array, kind, place)
    if isinstance(values, Ragged) and values.ragged_rank == 1:
        return values
    if not isinstance(values, Tensor):
        raise InvalidArgumentError(f"{place}: expected numbers or lists of them, got {array.type}")
    lengths = torch.ones(len(values), dtype=torch.int64) if is_there is None else is_there.to(torch.int64)
    return Ragged.from_lengths(values, lengths, validate=False)


_INT64_DIGITS = 19


def looks_like_a_number(cell: str) -> bool:
    """Returns whether a text is a number, as a name of a column hardly is."""
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() not in {"nan", "inf", "infinity"}


def found_types(read: Callable[..., pa.Table], head: bytes, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Returns the type of each column by the lines of a head; texts where there is nothing to go by."""
    if not head.strip():
        return dict.fromkeys(names, pa.string())
    table = read(head, None, [])
    types = {field.name: _found_type(field.type) for field in table.schema}
    # Arrow parses integers above 2^63 as floats, which would merge ids.
    doubtful = [name for name, kind in types.items() if pa.types.is_floating(kind)]
    if doubtful:
        texts = read(head, dict.fromkeys(doubtful, pa.string()), [])
        for name in doubtful:
            if _are_large_numbers(texts.column(name)):
                types[name] = pa.uint64()
    return types


def _found_type(kind: pa.DataType) -> pa.DataType:
    # Bytes are strings of another encoding, which is reported on read; an empty column may have strings later.
    if pa.types.is_null(kind) or pa.types.is_binary(kind):
        return pa.string()
    return pa.float32() if pa.types.is_floating(kind) else kind  # as batches have them


def _are_large_numbers(texts: pa.ChunkedArray) -> bool:
    present = texts.drop_null()
    if not len(present) or not pc.all(pc.match_substring_regex(present, r"^\d{1,20}$")).as_py():
        return False
    if pc.max(pc.utf8_length(present)).as_py() < _INT64_DIGITS:
        return False
    try:
        present.cast(pa.uint64())
    except pa.ArrowInvalid:
        return False
    return True


def type_to_read(column: Wanted, inferred: pa.DataType) -> pa.DataType:
    """Returns the type that a column is read as: the requested one, otherwise the inferred one."""
    if column in {ColumnType.TEXT, ColumnType.BYTES} or isinstance(column, FirstBytes):
        return pa.string()
    if column is ColumnType.IDS or isinstance(column, Ids):
        is_one_number = pa.types.is_integer(inferred) and not (isinstance(column, Ids) and column.separator)
        return inferred if is_one_number else pa.string()
    as_found = column is ColumnType.ANY or isinstance(column, NestedIds | LineIdField)
    if as_found or pa.types.is_boolean(inferred) or pa.types.is_temporal(inferred) or inferred == pa.uint64():
        return inferred
    is_real = column.dtype == "float32" if isinstance(column, DenseColumn) else isinstance(column, _REALS)
    return pa.float32() if is_real or column is ColumnType.FLOAT else pa.int64()
