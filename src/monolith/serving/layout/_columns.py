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
from monolith.serving.request import Column as RequestColumn
from monolith.serving.request import checked_ids, length_of
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monolith.export import DenseSpec

LooseColumn: TypeAlias = "Ragged | list[bytes]"
"""A column that is not a tensor: ragged numbers, or texts."""


def id_column(columns: Mapping[str, object], name: str) -> Tensor | Ragged:
    """Returns a column of ids: int64 [B], int64 [B, k] or rows of differing length; lists of numbers, too."""
    if name not in columns:
        close = difflib.get_close_matches(name, map(str, columns), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, columns)) or 'nothing'}"
        raise InvalidArgumentError(f"input {name!r}: the request has no ids for it; {hint}")
    return checked_ids(name, columns[name])


def num_examples_of(columns: Mapping[str, RequestColumn]) -> int:
    """Returns the number of examples of columns; one row applies to all examples."""
    counts = {name: count for name, column in columns.items() if (count := length_of(column)) != 1}
    if len(set(counts.values())) > 1:
        counted = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        raise InvalidArgumentError(f"columns must have as many examples as the others, or one for all; got {counted}")
    return next(iter(counts.values()), 1)


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
        raise InvalidArgumentError(f"input {spec.name!r}: the request has no values for it")
    column = columns[spec.name]
    if spec.dtype == "bytes":
        return _texts(column, spec)
    if isinstance(column, Ragged):
        return column
    values = _number_tensor(column, spec)
    if values.ndim == 0:
        raise InvalidArgumentError(f"input {spec.name!r}: a value for each example is expected, got a single one")
    if spec.width is not None and values.ndim == 2 and values.shape[1] != spec.width:
        raise InvalidArgumentError(
            f"input {spec.name!r}: {spec.width} numbers of each example are expected, got {values.shape[1]}"
        )
    return values


def _number_tensor(column: object, spec: DenseSpec) -> Tensor:
    dtype = getattr(torch, spec.dtype, None)
    if isinstance(column, Tensor | np.ndarray):
        values = column if isinstance(column, Tensor) else torch.from_numpy(column)
        if values.dtype is not dtype:
            raise InvalidArgumentError(f"input {spec.name!r}: {spec.dtype} is expected, got {values.dtype}")
        return values
    try:
        return torch.tensor(column, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgumentError(f"input {spec.name!r}: {spec.dtype} is expected; {error}") from error


def _texts(column: object, spec: DenseSpec) -> list[bytes]:
    if not isinstance(column, list | tuple) or not all(isinstance(text, bytes) for text in column):
        raise InvalidArgumentError(f"input {spec.name!r}: a list of bytes is expected, got {type(column).__name__}")
    return list(column)


def _ragged(values: Any, splits: Any, rows: int) -> Iterator[Ragged]:
    table = torch.from_numpy(splits).view(-1, rows + 1)
    parts = torch.split(torch.from_numpy(values), table[:, -1].tolist())
    return (Ragged(part, part_splits, validate=False) for part, part_splits in zip(parts, table.unbind(), strict=True))


def _dense(values: Any, widths: list[int], rows: int) -> Iterator[Tensor]:
    parts = torch.split(torch.from_numpy(values), [rows * width for width in widths])
    return (part.view(rows, width) for part, width in zip(parts, widths, strict=True))
