"""Columns of a request, as users pass them or as the core parses them: ids, and numbers.

A column has a row per example, or one row for all examples.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from monolith.data import Column, DenseColumn, FirstBytes, Floats, Ints
from monolith.errors import InvalidArgumentError
from monolith.serving.request import length_of
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from monolith.export import DenseSpec
    from monolith.serving.request import Column as RequestColumn

LooseColumn: TypeAlias = "Ragged | list[bytes]"
"""A column that is not a tensor: ragged numbers, or texts."""

_BY_SPLITS = -1


def contiguous(ids: RequestColumn) -> Tensor | Ragged:
    """Returns a column of ids in memory that the core can read."""
    values = ids.flat_values if isinstance(ids, Ragged) else ids
    if isinstance(ids, list) or not isinstance(values, Tensor) or values.dtype is not torch.int64 or not values.is_cpu:
        raise TypeError(f"ids must be int64 on the CPU, got {ids!r}")
    if isinstance(ids, Tensor):
        return ids.contiguous()
    if values.is_contiguous() and ids.row_splits.is_contiguous():
        return ids
    return Ragged(values.contiguous(), ids.row_splits.contiguous(), validate=False)


def core_column(ids: Tensor | Ragged) -> tuple[int, int, int, int, int]:
    """Returns the address and the number of ids, ids of each row or -1, address of the splits, and number of rows.

    REQUIRES: the column is `contiguous`, and the caller holds it.
    """
    if isinstance(ids, Ragged):
        values = ids.flat_values
        return values.data_ptr(), values.shape[0], _BY_SPLITS, ids.row_splits.data_ptr(), ids.num_rows
    rows, count = ids.shape[0], ids.numel()
    return ids.data_ptr(), count, count // rows if rows else 0, 0, rows


def id_column(columns: Mapping[str, object], name: str) -> Tensor | Ragged:
    """Returns a column of ids: int64 [B], int64 [B, k] or rows of differing length; lists of numbers, too."""
    column = columns.get(name)
    ids = column if isinstance(column, Tensor | Ragged) else _id_tensor(columns, name)
    if isinstance(ids, Ragged):
        return _checked_rows(ids, name)
    _require_ids(ids, name)
    if ids.ndim not in {1, 2}:
        raise InvalidArgumentError(
            f"column {name!r}: ids must be [examples], [examples, ids of each] or ragged, got shape {tuple(ids.shape)}"
        )
    return ids


def num_examples_of(columns: Mapping[str, RequestColumn]) -> int:
    """Returns the number of examples of columns; one row applies to all examples."""
    counts = {name: count for name, column in columns.items() if (count := length_of(column)) != 1}
    if len(set(counts.values())) > 1:
        counted = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        raise InvalidArgumentError(f"columns must have as many examples as the others, or one for all; got {counted}")
    return next(iter(counts.values()), 1)


def _checked_rows(ids: Ragged, name: str) -> Ragged:
    values, splits = ids.values, ids.row_splits
    if isinstance(values, Ragged) or values.ndim != 1:
        raise InvalidArgumentError(f"column {name!r}: ids must be rows of plain numbers, got {ids!r}")
    _require_ids(values, name)
    if splits.dtype != torch.int64 or splits.ndim != 1 or splits.shape[0] == 0 or not splits.is_cpu:
        raise InvalidArgumentError(f"column {name!r}: row_splits must be int64 [examples + 1] on the CPU")
    return ids


def _id_tensor(columns: Mapping[str, object], name: str) -> Tensor | Ragged:
    column = columns.get(name)
    if column is None:
        close = difflib.get_close_matches(name, map(str, columns), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, columns)) or 'nothing'}"
        raise InvalidArgumentError(f"column {name!r}: the request has no ids for it; {hint}")
    if isinstance(column, np.ndarray):
        return _of_array(column, name)
    if isinstance(column, list | tuple):
        return _of_list(column, name)
    raise InvalidArgumentError(
        f"column {name!r}: ids must be a tensor, Ragged, array or list, got {type(column).__name__}"
    )


def _of_array(array: NDArray[np.generic], name: str) -> Tensor:
    if array.dtype != np.int64:
        raise InvalidArgumentError(f"column {name!r}: ids must be int64, got {array.dtype}")
    return torch.from_numpy(np.ascontiguousarray(array))


def _of_list(column: Sequence[object], name: str) -> Tensor | Ragged:
    rows = [row if isinstance(row, list | tuple) else [row] for row in column]
    for row in rows:
        for number in row:
            if isinstance(number, bool) or not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
                raise InvalidArgumentError(f"column {name!r}: ids must be 64-bit integers, got {number!r}")
    lengths = {len(row) for row in rows}
    if len(lengths) == 1:
        return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), lengths.pop())
    flat = torch.tensor([number for row in rows for number in row], dtype=torch.int64)
    return Ragged.from_lengths(flat, torch.tensor([len(row) for row in rows], dtype=torch.int64))


def _require_ids(ids: Tensor, name: str) -> None:
    if ids.dtype is not torch.int64:
        raise InvalidArgumentError(f"column {name!r}: ids must be int64, got {ids.dtype}")
    if not ids.is_cpu or ids.layout is not torch.strided:
        raise InvalidArgumentError(
            f"column {name!r}: ids must be a dense tensor on the CPU, got {ids.layout} on {ids.device}"
        )


def sample_column(spec: DenseSpec) -> Column | None:
    """Returns the column of samples for a specification; None if samples cannot hold it."""
    if spec.dtype == "bytes":
        return FirstBytes(spec.name)
    if spec.dtype == "float32":
        return Floats(spec.name) if spec.width is None else DenseColumn(spec.name, width=spec.width)
    if spec.dtype == "int64":
        return Ints(spec.name) if spec.width is None else DenseColumn(spec.name, width=spec.width, dtype="int64")
    return None


def parsed_numbers(columns: Sequence[Column], parsed: tuple[Any, ...]) -> dict[str, Tensor | LooseColumn]:
    """Returns name -> values that the core parsed from these columns."""
    rows, ints, int_splits, floats, float_splits, dense_floats, dense_ints, texts, *_ = parsed
    widths = [column.width if isinstance(column, DenseColumn) else 1 for column in columns]
    is_int = [isinstance(column, DenseColumn) and column.dtype == "int64" for column in columns]
    of_dense = [isinstance(column, DenseColumn) for column in columns]
    pieces: dict[str, Iterator[Tensor | LooseColumn]] = {
        "Ints": _ragged(ints, int_splits, rows),
        "Floats": _ragged(floats, float_splits, rows),
        "FirstBytes": iter(texts),
        "float32": _dense(
            dense_floats, [w for w, i, d in zip(widths, is_int, of_dense, strict=True) if d and not i], rows
        ),
        "int64": _dense(dense_ints, [w for w, i in zip(widths, is_int, strict=True) if i], rows),
    }
    return {
        column.name: next(pieces[column.dtype if isinstance(column, DenseColumn) else type(column).__name__])
        for column in columns
    }


def given_number(columns: Mapping[str, object], spec: DenseSpec) -> Tensor | LooseColumn:
    """Returns the given column, as a tensor if it holds numbers."""
    if spec.name not in columns:
        raise InvalidArgumentError(f"column {spec.name!r}: the request has no values for it")
    column = columns[spec.name]
    if spec.dtype == "bytes":
        return _texts(column, spec)
    if isinstance(column, Ragged):
        return column
    values = _number_tensor(column, spec)
    if values.ndim == 0:
        raise InvalidArgumentError(f"column {spec.name!r}: a value for each example is expected, got a single one")
    if spec.width is not None and values.ndim == 2 and values.shape[1] != spec.width:
        raise InvalidArgumentError(
            f"column {spec.name!r}: {spec.width} numbers of each example are expected, got {values.shape[1]}"
        )
    return values


def _number_tensor(column: object, spec: DenseSpec) -> Tensor:
    dtype = getattr(torch, spec.dtype, None)
    if isinstance(column, Tensor | np.ndarray):
        values = column if isinstance(column, Tensor) else torch.from_numpy(column)
        if values.dtype is not dtype:
            raise InvalidArgumentError(f"column {spec.name!r}: {spec.dtype} is expected, got {values.dtype}")
        return values
    try:
        return torch.tensor(column, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgumentError(f"column {spec.name!r}: {spec.dtype} is expected; {error}") from error


def _texts(column: object, spec: DenseSpec) -> list[bytes]:
    if not isinstance(column, list | tuple) or not all(isinstance(text, bytes) for text in column):
        raise InvalidArgumentError(f"column {spec.name!r}: a list of bytes is expected, got {type(column).__name__}")
    return list(column)


def _ragged(values: Any, splits: Any, rows: int) -> Iterator[Ragged]:
    table = torch.from_numpy(splits).view(-1, rows + 1)
    parts = torch.split(torch.from_numpy(values), table[:, -1].tolist())
    return (Ragged(part, part_splits, validate=False) for part, part_splits in zip(parts, table.unbind(), strict=True))


def _dense(values: Any, widths: list[int], rows: int) -> Iterator[Tensor]:
    parts = torch.split(torch.from_numpy(values), [rows * width for width in widths])
    return (part.view(rows, width) for part, width in zip(parts, widths, strict=True))
