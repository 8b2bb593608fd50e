"""Validates the columns of a request against its signature.

A column is a tensor, a `Ragged`, or a list of bytes; its first dim is that of the examples, or 1 for a column that all
examples share. A front end provides columns; `fit` ensures that a model gets only what the signature specifies, so that
an invalid request gets a precise error and does not affect others in the same batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.serving.server.model import ENCODED
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.serving.server.model import ServedInput, ServedSignature


Column: TypeAlias = "Tensor | Ragged | list[bytes]"

VALUES, SPLITS = "/values", "/row_splits"
"""Suffixes of the name of a ragged column that is sent as two tensors."""


class Fitted(NamedTuple):
    """Validated columns for a model."""

    columns: dict[str, Column]
    num_examples: int


def is_encoded(names: Mapping[str, Any], signature: ServedSignature) -> bool:
    """Returns whether a request carries encoded samples instead of columns."""
    return len(names) == 1 and (name := next(iter(names))) in ENCODED and name not in signature.inputs


def length_of(column: Column) -> int:
    """Returns the first dim."""
    if isinstance(column, Tensor):
        return column.shape[0] if column.ndim else 0
    return len(column) if isinstance(column, list) else column.num_rows


def fit(columns: Mapping[str, Column], signature: ServedSignature, *, max_examples: int) -> Fitted:
    """Converts columns to the types and shapes of the signature.

    Raises:
        InvalidArgumentError: a column is missing, unknown, or of the wrong type or shape; numbers of examples differ or
            exceed the limit; a number is not finite.
    """
    if is_encoded(columns, signature):
        ((name, samples),) = columns.items()
        if not isinstance(samples, list):
            raise InvalidArgumentError(f"input {name!r}: must be bytes, got {_kind_of(samples)}")
        return Fitted({name: samples}, require_examples(num_examples(name, samples, max_examples), max_examples))
    joined = _join_pairs(columns)
    _require_names(joined, signature)
    count = require_examples(_common_length(joined), max_examples)
    return Fitted({name: _fit_column(name, joined[name], spec) for name, spec in signature.inputs.items()}, count)


def require_examples(count: int, limit: int) -> int:
    """Returns the number of examples of a request if it is within the limit.

    Raises:
        InvalidArgumentError: there are too many.
    """
    if count > limit:
        raise InvalidArgumentError(f"a request may have {limit} examples, got {count}; send several requests")
    return count


def values_of_texts(name: str, ids: Tensor | Ragged) -> Tensor:
    """Returns the ids of texts that are sent with their own row splits.

    Raises:
        InvalidArgumentError: a text has several ids, so that the splits would not fit.
    """
    if isinstance(ids, Ragged) or ids.ndim != 1:
        raise InvalidArgumentError(f"input {name!r}: a text of it has several values; send texts without row splits")
    return ids


def _join_pairs(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Joins each pair of tensors ``name/values`` and ``name/row_splits`` to one column."""
    joined = {name: column for name, column in columns.items() if not name.endswith((VALUES, SPLITS))}
    for part_name in columns:
        if not part_name.endswith((VALUES, SPLITS)):
            continue
        name = part_name.rpartition("/")[0]
        values, splits = columns.get(name + VALUES), columns.get(name + SPLITS)
        if not isinstance(values, Tensor) or not isinstance(splits, Tensor) or name in columns:
            raise InvalidArgumentError(
                f"input {name!r}: must come as one tensor, or as {name + VALUES!r} together with {name + SPLITS!r}"
            )
        if splits.is_floating_point() or splits.is_complex() or splits.dtype is torch.bool:
            raise InvalidArgumentError(f"input {name + SPLITS!r}: must be int64, got {_kind_of(splits)}")
        try:
            joined[name] = Ragged(values, splits.to(torch.int64))
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"input {name + SPLITS!r}: {error}") from None
    return joined


def _require_names(columns: Mapping[str, Column], signature: ServedSignature) -> None:
    missing = [name for name in signature.inputs if name not in columns]
    unknown = [name for name in columns if name not in signature.inputs]
    if missing or unknown:
        problem = f"input {missing[0]!r} is missing" if missing else f"input {unknown[0]!r} is unknown"
        raise InvalidArgumentError(f"{problem}; inputs are: {', '.join(signature.inputs)}")


def _common_length(columns: Mapping[str, Column]) -> int:
    lengths = {name: length_of(column) for name, column in columns.items()}
    most = max(lengths, key=lambda name: lengths[name])
    for name, length in lengths.items():
        if length not in (1, lengths[most]):
            raise InvalidArgumentError(
                f"input {name!r}: has {length} examples, and {most!r} has {lengths[most]}; all must have as many, or 1"
                " that they share"
            )
    return lengths[most]


def _fit_column(name: str, column: Column, spec: ServedInput) -> Column:
    if spec.dtype == "bytes" or isinstance(column, list):
        if spec.dtype != "bytes" or not isinstance(column, list):
            raise InvalidArgumentError(f"input {name!r}: must be {spec.dtype}, got {_kind_of(column)}")
        return column
    column = _typed(name, column, spec)
    if spec.ragged or spec.kind == "ids":
        is_single = not spec.ragged and isinstance(column, Tensor) and column.ndim == 1
        return column if is_single else _as_ragged(name, column)
    if isinstance(column, Ragged):
        raise InvalidArgumentError(f"input {name!r}: must have as many values in every example, got a ragged column")
    expected, shape = spec.shape[1:], tuple(column.shape[1:])
    if expected == (1,) and shape == ():  # a single value may be sent without a list
        return column.reshape(-1, 1)
    if len(shape) != len(expected) or any(want not in (None, got) for want, got in zip(expected, shape, strict=True)):
        shown = ["any" if size is None else size for size in expected]
        raise InvalidArgumentError(f"input {name!r}: must have the shape {shown} for an example, got {list(shape)}")
    return column


def _typed(name: str, column: Tensor | Ragged, spec: ServedInput) -> Tensor | Ragged:
    values = column.flat_values if isinstance(column, Ragged) else column
    dtype: torch.dtype = getattr(torch, spec.dtype, torch.float32)
    if values.dtype is not dtype:
        if (
            values.dtype is torch.bool
            or values.is_complex()
            or (values.is_floating_point() and not dtype.is_floating_point)
        ):
            raise InvalidArgumentError(f"input {name!r}: must be {spec.dtype}, got {_kind_of(values)}")
        values = _converted(name, values, dtype, is_id=spec.kind == "ids")
        column = column.with_values(values) if isinstance(column, Ragged) else values
    if dtype.is_floating_point and not bool(torch.isfinite(values).all()):
        raise InvalidArgumentError(f"input {name!r}: must be finite, got NaN or an infinity")
    return column


def _converted(name: str, values: Tensor, dtype: torch.dtype, *, is_id: bool) -> Tensor:
    if values.dtype is torch.uint64 and is_id:
        return values.view(dtype)  # 64-bit hashes are ids with either sign
    if not dtype.is_floating_point and dtype is not torch.bool and values.numel():
        limits, array = torch.iinfo(dtype), values.numpy()  # torch has no extremes of the wider unsigned types
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise InvalidArgumentError(
                f"input {name!r}: must be {limits.dtype}, {limits.min} to {limits.max}, got"
                f" {low if low < limits.min else high}"
            )
    return values.to(dtype)


def _as_ragged(name: str, column: Tensor | Ragged) -> Ragged:
    if isinstance(column, Ragged):
        return column
    if column.ndim not in (1, 2):
        raise InvalidArgumentError(
            f"input {name!r}: must have one or two dims, examples and their values, got the shape {list(column.shape)}"
        )
    width = 1 if column.ndim == 1 else column.shape[1]
    splits = torch.arange(column.shape[0] + 1, dtype=torch.int64) * width
    return Ragged(column.reshape(-1), splits, validate=False)


def _kind_of(column: Column) -> str:
    if isinstance(column, list):
        return "bytes"
    values = column.flat_values if isinstance(column, Ragged) else column
    return str(values.dtype).removeprefix("torch.")


def num_examples(name: str, samples: list[bytes], limit: int) -> int:
    """Returns the number of examples of an input of that name; for an ``ExampleBatch`` at most `limit` + 1.

    Raises:
        InvalidArgumentError: there is no sample, there are several batches, or the bytes are not an ``ExampleBatch``.
    """
    if name != "example_batch":
        if not samples:
            raise InvalidArgumentError(f"input {name!r}: must have at least one sample, got none")
        return len(samples)
    if len(samples) != 1:
        raise InvalidArgumentError(f"input {name!r}: must be one ExampleBatch, got {len(samples)}")
    return min(_batch_size(samples[0]), limit + 1)


def _batch_size(data: bytes) -> int:
    size = _core.example_batch_size(data)
    if size is None:
        raise InvalidArgumentError("input 'example_batch': the bytes are no ExampleBatch: cut off or foreign")
    return size
