"""Columns of numbers: parsed by the core from encoded samples, or passed by users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from monolith.data.columns import Column, DenseColumn, FirstBytes, Floats, Ints
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monolith.export.layout_spec import DenseSpec
    from monolith.serving.layout.laid_out import LooseColumn


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
    """Returns the given column, as a tensor if it holds numbers.

    Raises:
        InvalidArgumentError: the column is missing, or of another type or width.
    """
    if spec.name not in columns:
        raise InvalidArgumentError(f"column {spec.name!r}: the request has no values for it")
    given = columns[spec.name]
    if spec.dtype == "bytes":
        return _texts(given, spec)
    if isinstance(given, Ragged):
        return given
    values = _as_tensor(given, spec)
    if values.ndim == 0:
        raise InvalidArgumentError(f"column {spec.name!r}: a value for each example is expected, got a single one")
    if spec.width is not None and values.ndim == 2 and values.shape[1] != spec.width:
        raise InvalidArgumentError(
            f"column {spec.name!r}: {spec.width} numbers of each example are expected, got {values.shape[1]}"
        )
    return values


def num_rows_of(value: Tensor | LooseColumn) -> int:
    """Returns the number of examples of a column."""
    if isinstance(value, Tensor):
        return value.shape[0]
    return value.num_rows if isinstance(value, Ragged) else len(value)


def for_all(value: Tensor | LooseColumn, num_examples: int) -> Tensor | LooseColumn:
    """Repeats the single row of a column for every example."""
    if isinstance(value, Tensor):
        return value.expand(num_examples, *value.shape[1:])
    if isinstance(value, Ragged):
        count = value.row_splits[-1]
        return Ragged(value.flat_values.repeat(num_examples), torch.arange(num_examples + 1) * count, validate=False)
    return value * num_examples


def _as_tensor(given: object, spec: DenseSpec) -> Tensor:
    wanted = getattr(torch, spec.dtype, None)
    if isinstance(given, Tensor | np.ndarray):
        values = given if isinstance(given, Tensor) else torch.from_numpy(given)
        if values.dtype is not wanted:
            raise InvalidArgumentError(f"column {spec.name!r}: {spec.dtype} is expected, got {values.dtype}")
        return values
    try:
        return torch.tensor(given, dtype=wanted)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgumentError(f"column {spec.name!r}: {spec.dtype} is expected; {error}") from error


def _texts(given: object, spec: DenseSpec) -> list[bytes]:
    if not isinstance(given, list | tuple) or not all(isinstance(each, bytes) for each in given):
        raise InvalidArgumentError(f"column {spec.name!r}: a list of bytes is expected, got {type(given).__name__}")
    return list(given)


def _ragged(values: Any, splits: Any, rows: int) -> Iterator[Ragged]:
    table = torch.from_numpy(splits).view(-1, rows + 1)
    parts = torch.split(torch.from_numpy(values), table[:, -1].tolist())
    return (Ragged(part, part_splits, validate=False) for part, part_splits in zip(parts, table.unbind(), strict=True))


def _dense(values: Any, widths: list[int], rows: int) -> Iterator[Tensor]:
    parts = torch.split(torch.from_numpy(values), [rows * width for width in widths])
    return (part.view(rows, width) for part, width in zip(parts, widths, strict=True))
