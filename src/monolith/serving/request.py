"""Columns of a request, typed by a signature: checked once, and then taken as they are by models and layouts.

A column is a tensor, a `Ragged`, or a list of bytes; its first dim is that of the examples, or 1 for a column that all
examples share. `fit` types what a front end has decoded, and converts numbers without loss; `typed_columns` types what
a caller of Python passes, whose tensors must have the right type. Both let pass only what the signature specifies, so
that an invalid request gets a precise error and does not affect others in the same batch.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from monolith import _core
from monolith.data import Batch, TextColumn
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from monolith.export import InputSpec, Signature
    from monolith.serving.layout import SampleForm

Column: TypeAlias = "Tensor | Ragged | list[bytes]"

SAMPLE_FORMS = ("example_batch", "examples", "instances")
"""Names of inputs that carry encoded samples instead of columns: any signature accepts them."""
VALUES, SPLITS = "/values", "/row_splits"
"""Suffixes of the name of a ragged column that is sent as two tensors."""


class TypedColumns(dict[str, Column]):
    """Columns of the types of a signature, or encoded samples under their conventional name.

    A column has as many rows as there are examples, or one. Without a signature they are typed by a layout.
    """

    __slots__ = ("num_examples", "signature")

    def __init__(self, columns: Mapping[str, Column], signature: Signature | None, num_examples: int) -> None:
        super().__init__(columns)
        self.signature = signature
        self.num_examples = num_examples


class EncodedSamples(NamedTuple):
    """Samples as the bytes of their messages."""

    data: bytes | Sequence[bytes]
    form: SampleForm


def is_encoded(names: Mapping[str, Any], signature: Signature) -> bool:
    """Returns whether a request carries encoded samples instead of columns."""
    return len(names) == 1 and (name := next(iter(names))) in SAMPLE_FORMS and name not in signature.inputs


def encoded_samples(inputs: object, signature: Signature) -> EncodedSamples | None:
    """Returns the encoded samples of a request; plain bytes are an ``ExampleBatch``. None if it has columns."""
    if isinstance(inputs, bytes):
        return EncodedSamples(inputs, "example_batch")
    if not isinstance(inputs, Mapping) or not is_encoded(inputs, signature):
        return None
    ((name, data),) = inputs.items()
    samples = [data] if isinstance(data, bytes) else data
    if not isinstance(samples, Sequence) or not samples or not all(isinstance(sample, bytes) for sample in samples):
        raise InvalidArgumentError(f"input {name!r}: samples as bytes expected, at least one")
    return EncodedSamples(samples, name)


def length_of(column: Column) -> int:
    """Returns the first dim."""
    if isinstance(column, Tensor):
        return column.shape[0] if column.ndim else 0
    return len(column) if isinstance(column, list) else column.num_rows


def for_all(column: Column, num_examples: int) -> Column:
    """Repeats the single row of a column for every example; other columns are unchanged."""
    if length_of(column) == num_examples:
        return column
    if isinstance(column, Tensor):
        return column.expand(num_examples, *column.shape[1:])
    if isinstance(column, Ragged):
        splits = torch.arange(num_examples + 1) * column.row_splits[-1]
        return Ragged(column.flat_values.repeat(num_examples), splits, validate=False)
    return column * num_examples


# Columns of front ends


def fit(columns: Mapping[str, Column], signature: Signature, *, max_examples: int) -> TypedColumns:
    """Converts decoded columns to the types and shapes of the signature."""
    if is_encoded(columns, signature):
        ((name, samples),) = columns.items()
        if not isinstance(samples, list):
            raise InvalidArgumentError(f"input {name!r}: must be bytes, got {_kind_of(samples)}")
        count = require_examples(num_samples(name, samples, max_examples), max_examples)
        return TypedColumns({name: samples}, signature, count)
    joined = _join_pairs(columns)
    if joined.keys() != signature.inputs.keys():
        missing = [f"input {name!r} is missing" for name in signature.inputs if name not in joined]
        unknown = [f"input {name!r} is unknown" for name in joined if name not in signature.inputs]
        raise InvalidArgumentError(f"{[*missing, *unknown][0]}; inputs are: {', '.join(signature.inputs)}")
    lengths = {name: length_of(column) for name, column in joined.items()}
    most = max(lengths.values())
    for name, length in lengths.items():
        if length not in (1, most):
            raise InvalidArgumentError(
                f"input {name!r}: has {length} examples, and {_longest(lengths)!r} has {most}; all must have as many,"
                " or 1 that they share"
            )
    require_examples(most, max_examples)
    typed = {name: _fit_column(name, joined[name], spec) for name, spec in signature.inputs.items()}
    return TypedColumns(typed, signature, most)


def require_examples(count: int, limit: int) -> int:
    """Returns the number of examples of a request if it is within the limit."""
    if count > limit:
        raise InvalidArgumentError(f"a request may have {limit} examples, got {count}; send several requests")
    return count


def num_samples(name: str, samples: list[bytes], limit: int) -> int:
    """Returns the number of examples of encoded samples; for an ``ExampleBatch`` at most `limit` + 1."""
    if name != "example_batch":
        if not samples:
            raise InvalidArgumentError(f"input {name!r}: must have at least one sample, got none")
        return len(samples)
    if len(samples) != 1:
        raise InvalidArgumentError(f"input {name!r}: must be one ExampleBatch, got {len(samples)}")
    size = _core.example_batch_size(samples[0])
    if size is None:
        raise InvalidArgumentError("input 'example_batch': the bytes are no ExampleBatch: cut off or foreign")
    return min(size, limit + 1)


def values_of_texts(name: str, ids: Tensor | Ragged) -> Tensor:
    """Returns the ids of texts that are sent with their own row splits."""
    if isinstance(ids, Ragged) or ids.ndim != 1:
        raise InvalidArgumentError(f"input {name!r}: a text of it has several values; send texts without row splits")
    return ids


def _join_pairs(columns: Mapping[str, Column]) -> Mapping[str, Column]:
    """Joins each pair of tensors ``name/values`` and ``name/row_splits`` to one column."""
    parts = [name for name in columns if name.endswith((VALUES, SPLITS))]
    if not parts:
        return columns
    joined = {name: column for name, column in columns.items() if name not in parts}
    for part in parts:
        name = part.rpartition("/")[0]
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


def _fit_column(name: str, column: Column, spec: InputSpec) -> Column:
    if spec.dtype == "bytes" or isinstance(column, list):
        if spec.dtype != "bytes" or not isinstance(column, list):
            raise InvalidArgumentError(f"input {name!r}: must be {spec.dtype}, got {_kind_of(column)}")
        return column
    column = _converted(name, column, spec)
    if spec.ragged or spec.kind == "ids":
        is_single = not spec.ragged and isinstance(column, Tensor) and column.ndim == 1
        return column if is_single else _as_ragged(name, column)
    if isinstance(column, Ragged):
        raise InvalidArgumentError(f"input {name!r}: must have as many values in every example, got a ragged column")
    expected, shape = spec.shape[1:], tuple(column.shape[1:])
    if expected == (1,) and shape == ():  # a single value may be sent without a list
        return column.reshape(-1, 1)
    if not _fits(shape, expected):
        shown = ["any" if size is None else size for size in expected]
        raise InvalidArgumentError(f"input {name!r}: must have the shape {shown} for an example, got {list(shape)}")
    return column


def _converted(name: str, column: Tensor | Ragged, spec: InputSpec) -> Tensor | Ragged:
    values = column.flat_values if isinstance(column, Ragged) else column
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if values.dtype is not dtype:
        is_real = values.is_floating_point() and not dtype.is_floating_point
        if values.dtype is torch.bool or values.is_complex() or is_real:
            raise InvalidArgumentError(f"input {name!r}: must be {spec.dtype}, got {_kind_of(values)}")
        if values.dtype is torch.uint64 and spec.kind == "ids":
            values = values.view(dtype)  # 64-bit hashes are ids with either sign
        else:
            _require_range(name, values, dtype)
            values = values.to(dtype)
        column = column.with_values(values) if isinstance(column, Ragged) else values
    if _infinite_place(values) is not None:
        raise InvalidArgumentError(f"input {name!r}: must be finite, got NaN or an infinity")
    return column


def _require_range(name: str, values: Tensor, dtype: torch.dtype) -> None:
    if dtype.is_floating_point or dtype is torch.bool or not values.numel():
        return
    limits, array = torch.iinfo(dtype), values.numpy()  # torch has no extremes of the wider unsigned types
    low, high = int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        wrong = low if low < limits.min else high
        raise InvalidArgumentError(f"input {name!r}: must be {limits.dtype}, {limits.min} to {limits.max}, got {wrong}")


def _as_ragged(name: str, column: Tensor | Ragged) -> Ragged:
    shape = column.flat_values.shape if isinstance(column, Ragged) else column.shape
    if len(shape) != 1 and (len(shape) != 2 or isinstance(column, Ragged)):
        raise InvalidArgumentError(
            f"input {name!r}: must have one or two dims, examples and their values, got the shape {list(shape)}"
        )
    if isinstance(column, Ragged):
        return column
    width = 1 if len(shape) == 1 else shape[1]
    return Ragged(column.reshape(-1), torch.arange(shape[0] + 1) * width, validate=False)


def _kind_of(column: Column) -> str:
    if isinstance(column, list):
        return "bytes"
    values = column.flat_values if isinstance(column, Ragged) else column
    return str(values.dtype).removeprefix("torch.")


# Columns of callers in Python


def typed_columns(inputs: Mapping[str, Any], signature: Signature, *, name: str) -> TypedColumns:
    """Returns the columns of a request, each of the type in the signature; those that have been typed as they are.

    A `Batch` may have additional columns, as those of training do; other inputs may not.
    """
    if isinstance(inputs, TypedColumns) and (inputs.signature is signature or inputs.signature == signature):
        if not inputs.num_examples:
            raise InvalidArgumentError("the request has no examples")
        return inputs
    if not isinstance(inputs, Batch):
        for column in inputs:
            if column not in signature.inputs:
                close = difflib.get_close_matches(str(column), signature.inputs, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it reads {', '.join(signature.inputs)}"
                raise InvalidArgumentError(f"input {str(column)[:80]!r} is none of signature {name!r}; {hint}")
    columns = {column: _typed_column(column, inputs, signature, name) for column in signature.inputs}
    lengths = {column: length_of(values) for column, values in columns.items()}
    most = max(lengths.values())
    if most == 0:
        raise InvalidArgumentError("the request has no examples")
    for column, length in lengths.items():
        if length not in (1, most):
            raise InvalidArgumentError(
                f"input {column!r}: {most} examples expected, as of {_longest(lengths)!r}, or one for all, got {length}"
            )
    return TypedColumns(columns, signature, most)


def _typed_column(column: str, inputs: Mapping[str, Any], signature: Signature, name: str) -> Tensor | Ragged:
    if column not in inputs:
        raise InvalidArgumentError(
            f"input {column!r} is missing: signature {name!r} reads {', '.join(signature.inputs)}"
        )
    spec, values = signature.inputs[column], inputs[column]
    if spec.texts is not None and isinstance(values, list | tuple):
        values = _ids_of_texts(column, values, spec.texts)
    return checked_ids(column, values) if spec.kind == "ids" else _numbers(column, values, spec)


def checked_numbers(columns: Mapping[str, Any], signature: Signature) -> dict[str, Column]:
    """Returns the dense columns of samples, with the shapes of the signature."""
    checked = {}
    for name, spec in signature.inputs.items():
        values = columns.get(name)
        if spec.kind != "dense" or values is None:
            continue
        if isinstance(values, Tensor):
            values = values.reshape(values.shape[0], *(-1 if size is None else size for size in spec.shape[1:]))
        _require_finite(name, values if isinstance(values, Tensor) else values.flat_values)
        checked[name] = values
    return checked


def _ids_of_texts(column: str, values: list[Any] | tuple[Any, ...], texts: TextColumn) -> Any:
    """Converts texts, or lists of texts, to ids; ids are unchanged."""
    has_lists = any(isinstance(value, list | tuple) for value in values)
    rows = [value if isinstance(value, list | tuple) else [value] for value in values] if has_lists else [values]
    flat = list(chain.from_iterable(rows))
    if not any(isinstance(value, str | bytes) for value in flat):
        return values
    wrong = next((value for value in flat if not isinstance(value, str | bytes)), None)
    if wrong is not None:
        raise InvalidArgumentError(
            f"input {column!r}: has texts, so that all values must be texts, got {type(wrong).__name__}"
        )
    splits = torch.tensor([0, *accumulate(map(len, rows))]) if has_lists else None
    return texts.ids(flat, splits)


def checked_ids(column: str, values: Any) -> Tensor | Ragged:
    """Returns a column of ids as int64 [B], int64 [B, k] or rows of differing length."""
    if isinstance(values, list | tuple):
        values = _list_of(column, values, nested="ids must be integers")
        values = values if isinstance(values, Ragged) or values.size else torch.zeros(0, dtype=torch.int64)
    if isinstance(values, Ragged):
        flat, splits = values.flat_values, values.row_splits
        if values.ragged_rank != 1 or flat.dtype != torch.int64 or flat.ndim != 1 or flat.layout is not torch.strided:
            raise InvalidArgumentError(f"input {column!r}: ids must be rows of int64, got {flat.dtype}")
        if splits.dtype != torch.int64 or splits.ndim != 1 or not splits.shape[0] or not splits.is_cpu:
            raise InvalidArgumentError(f"input {column!r}: row_splits must be int64 [examples + 1] on the CPU")
        _require_memory(column, flat)
        return values
    tensor = _tensor(column, values)
    if tensor.dtype != torch.int64:
        raise InvalidArgumentError(f"input {column!r}: ids must be int64, got {tensor.dtype}")
    if tensor.ndim not in {1, 2}:
        raise InvalidArgumentError(
            f"input {column!r}: ids must be [examples], [examples, ids of each] or ragged, got {list(tensor.shape)}"
        )
    return tensor


def _numbers(column: str, values: Any, spec: InputSpec) -> Tensor | Ragged:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.ragged:
        return _ragged_numbers(column, values, dtype)
    is_list = isinstance(values, list | tuple)
    tensor = _tensor(column, _list_of(column, values) if is_list else values)
    if tensor.dtype != dtype:
        if not is_list or tensor.dtype.is_complex or (tensor.dtype.is_floating_point and not dtype.is_floating_point):
            raise InvalidArgumentError(f"input {column!r}: {spec.dtype} expected, got {tensor.dtype}")
        tensor = tensor.to(dtype)
    if tensor.ndim != len(spec.shape) or not _fits(tensor.shape[1:], spec.shape[1:]):
        shown = ", ".join("examples" if size is None else str(size) for size in spec.shape)
        raise InvalidArgumentError(f"input {column!r}: shape [{shown}] expected, got {list(tensor.shape)}")
    _require_finite(column, tensor)
    return tensor


def _ragged_numbers(column: str, values: Any, dtype: torch.dtype) -> Ragged:
    if isinstance(values, list | tuple):
        try:
            values = Ragged.from_lists(values, dtype=dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"input {column!r}: a list for each example expected: {error}") from error
    if not isinstance(values, Ragged) or values.dtype != dtype:
        raise InvalidArgumentError(
            f"input {column!r}: rows of {dtype} expected, got {getattr(values, 'dtype', type(values).__name__)}"
        )
    _require_memory(column, values.flat_values)
    _require_finite(column, values.flat_values)
    return values


def _list_of(column: str, values: Any, *, nested: str | None = None) -> Any:
    """Returns the array of a list; the rows of a list of lists if `nested`, the error text for them, is given."""
    try:
        has_lists = nested is not None and any(isinstance(value, list | tuple) for value in values)
        if nested is not None and bool in set(map(type, chain.from_iterable(values) if has_lists else values)):
            raise TypeError("got true or false")  # noqa: TRY301 - one handler reports every fault
        return Ragged.from_lists(values) if has_lists else np.array(values)
    except (TypeError, ValueError, OverflowError) as error:
        expected = nested or "numbers in lists of one length expected"
        raise InvalidArgumentError(f"input {column!r}: {expected}: {str(error)[:120]}") from error


def _tensor(column: str, values: Any) -> Tensor:
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "ifb":
            expected = "signed numbers" if values.dtype.kind == "u" else "numbers"
            raise InvalidArgumentError(f"input {column!r}: {expected} expected, got {values.dtype}")
        return torch.from_numpy(np.ascontiguousarray(values))
    if not isinstance(values, Tensor) or values.layout is not torch.strided:
        raise InvalidArgumentError(
            f"input {column!r}: a tensor or lists of numbers expected, got {type(values).__name__}"
        )
    if values.ndim == 0:
        raise InvalidArgumentError(f"input {column!r}: one number for each example expected, got a single one")
    _require_memory(column, values)
    return values if values.is_cpu else values.cpu()


def _require_memory(column: str, values: Tensor) -> None:
    if values.is_meta:
        raise InvalidArgumentError(f"input {column!r}: a tensor with values expected, got one of torch's meta device")


# Both


def _longest(lengths: Mapping[str, int]) -> str:
    return max(lengths, key=lambda name: lengths[name])


def _fits(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    return len(shape) == len(expected) and all(
        size in (None, actual) for size, actual in zip(expected, shape, strict=True)
    )


def _infinite_place(values: Tensor) -> list[int] | None:
    """Returns the indices of the first number that is NaN or infinite; None: there is none."""
    # Usually the sum is finite; computing it takes a tenth of the time of checking every number.
    if not values.dtype.is_floating_point or not values.numel() or math.isfinite(values.sum().item()):
        return None
    infinite = (~torch.isfinite(values)).nonzero()
    return infinite[0].tolist() if len(infinite) else None


def _require_finite(column: str, values: Tensor) -> None:
    place = _infinite_place(values)
    if place is not None:
        raise InvalidArgumentError(
            f"input {column!r}: {values[tuple(place)].item()} at {place}; finite numbers expected"
        )
