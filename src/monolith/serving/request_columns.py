"""Converts the inputs of a request to columns of the types of a signature."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from monolith.data import Batch
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from monolith.data import TextColumn
    from monolith.export import InputSpec, Signature
    from monolith.serving.layout import SampleForm


_FORMS = ("example_batch", "examples", "instances")

Column = Tensor | Ragged


def request_columns(inputs: Mapping[str, Any], signature: Signature, *, name: str) -> dict[str, Column]:
    """Returns the columns of a request, each of the type in the signature.

    A `Batch` may have additional columns, as those of training do; other inputs may not.

    Raises:
        InvalidArgumentError: a column is missing, unknown, of another type or shape, or holds NaN.
    """
    if not isinstance(inputs, Batch):
        for column in inputs:
            if column not in signature.inputs:
                raise InvalidArgumentError(_unknown(column, signature, name))
    columns = {}
    for column, spec in signature.inputs.items():
        if column not in inputs:
            raise InvalidArgumentError(
                f"input {column!r} is missing: signature {name!r} reads {', '.join(signature.inputs)}"
            )
        values = inputs[column]
        if spec.texts is not None and isinstance(values, list | tuple):
            values = _ids_of_texts(column, values, spec.texts)
        columns[column] = _ids(column, values) if spec.kind == "ids" else _numbers(column, values, spec)
    return _same_length(columns)


class EncodedSamples(NamedTuple):
    """Samples as the bytes of their messages."""

    data: bytes | Sequence[bytes]
    form: SampleForm


def encoded_samples(inputs: object, signature: Signature) -> EncodedSamples | None:
    """Returns the encoded samples of a request; plain bytes are an ``ExampleBatch``. None if it has columns.

    Raises:
        InvalidArgumentError: one of the conventional names does not hold bytes.
    """
    if isinstance(inputs, bytes):
        return EncodedSamples(inputs, "example_batch")
    if not isinstance(inputs, Mapping) or len(inputs) != 1:
        return None
    (name,) = inputs
    if name in signature.inputs or name not in _FORMS:
        return None
    data = inputs[name]
    samples = [data] if isinstance(data, bytes) else data
    if not isinstance(samples, Sequence) or not samples or not all(isinstance(sample, bytes) for sample in samples):
        raise InvalidArgumentError(f"input {name!r}: samples as bytes expected, at least one")
    return EncodedSamples(samples, name)


def checked_numbers(columns: Mapping[str, Any], signature: Signature) -> dict[str, Column]:
    """Returns the dense columns of samples, with the shapes of the signature.

    Raises:
        InvalidArgumentError: a column holds NaN.
    """
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


def num_examples(values: Column) -> int:
    """Returns the number of rows of a column."""
    return values.num_rows if isinstance(values, Ragged) else values.shape[0]


def for_all(values: Column, num_rows: int) -> Column:
    """Repeats a column of one row for all examples."""
    if num_examples(values) == num_rows:
        return values
    if isinstance(values, Ragged):
        return Ragged.from_lengths(values.flat_values.repeat(num_rows), values.lengths().repeat(num_rows))
    return values.expand(num_rows, *values.shape[1:])


def _unknown(column: object, signature: Signature, name: str) -> str:
    close = difflib.get_close_matches(str(column), signature.inputs, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; it reads {', '.join(signature.inputs)}"
    return f"input {str(column)[:80]!r} is none of signature {name!r}{hint}"


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


def _ids(column: str, values: Any) -> Column:
    if isinstance(values, Ragged):
        if values.ragged_rank != 1 or values.dtype != torch.int64:
            raise InvalidArgumentError(f"input {column!r}: ids must be rows of int64, got {values.dtype}")
        return values
    if isinstance(values, list | tuple):
        values = _ids_of_list(column, values)
        if isinstance(values, Ragged):
            return values
    tensor = _tensor(column, values)
    if tensor.dtype != torch.int64:
        raise InvalidArgumentError(f"input {column!r}: ids must be int64, got {tensor.dtype}")
    if tensor.ndim not in {1, 2}:
        raise InvalidArgumentError(
            f"input {column!r}: ids must be [examples], [examples, ids of each] or ragged, got {list(tensor.shape)}"
        )
    return tensor


def _ids_of_list(column: str, values: list[Any] | tuple[Any, ...]) -> Any:
    try:
        if any(isinstance(value, list | tuple) for value in values):
            return Ragged.from_lists(values)
        array = np.array(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"input {column!r}: ids must be integers: {str(error)[:120]}") from error
    return array if array.size else torch.zeros(0, dtype=torch.int64)


def _numbers(column: str, values: Any, spec: InputSpec) -> Column:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.ragged:
        return _ragged_numbers(column, values, dtype)
    is_list = isinstance(values, list | tuple)
    tensor = _tensor(column, _array(column, values) if is_list else values)
    if tensor.dtype != dtype:
        if not is_list or tensor.dtype.is_complex or (tensor.dtype.is_floating_point and not dtype.is_floating_point):
            raise InvalidArgumentError(f"input {column!r}: {spec.dtype} expected, got {tensor.dtype}")
        tensor = tensor.to(dtype)
    shape = spec.shape
    if tensor.ndim != len(shape) or any(
        size is not None and size != actual for size, actual in zip(shape[1:], tensor.shape[1:], strict=True)
    ):
        wanted_shape = ", ".join("examples" if size is None else str(size) for size in shape)
        raise InvalidArgumentError(f"input {column!r}: shape [{wanted_shape}] expected, got {list(tensor.shape)}")
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
    _require_finite(column, values.flat_values)
    return values


def _array(column: str, values: Any) -> Any:
    try:
        array = np.array(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"input {column!r}: numbers in lists of one length expected: {str(error)[:120]}"
        ) from error
    return array


def _tensor(column: str, values: Any) -> Tensor:
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iufb":
            raise InvalidArgumentError(f"input {column!r}: numbers expected, got {values.dtype}")
        if values.dtype.kind == "u":
            raise InvalidArgumentError(f"input {column!r}: signed numbers expected, got {values.dtype}")
        return torch.from_numpy(np.ascontiguousarray(values))
    if not isinstance(values, Tensor) or values.layout is not torch.strided:
        raise InvalidArgumentError(
            f"input {column!r}: a tensor or lists of numbers expected, got {type(values).__name__}"
        )
    if values.ndim == 0:
        raise InvalidArgumentError(f"input {column!r}: one number for each example expected, got a single one")
    return values if values.is_cpu else values.cpu()


def _require_finite(column: str, values: Tensor) -> None:
    # Usually the sum is finite; computing it takes a tenth of the time of checking every number.
    if not values.dtype.is_floating_point or not values.numel() or math.isfinite(values.sum().item()):
        return
    finite = torch.isfinite(values)
    if not finite.all():
        place = (~finite).nonzero()[0].tolist()
        raise InvalidArgumentError(
            f"input {column!r}: {values[tuple(place)].item()} at {place}; finite numbers expected"
        )


def _same_length(columns: dict[str, Column]) -> dict[str, Column]:
    """Expands columns of one row to all examples."""
    lengths = {name: num_examples(values) for name, values in columns.items()}
    longest = max(lengths.values())
    if longest == 0:
        raise InvalidArgumentError("the request has no examples")
    for name, length in lengths.items():
        if length not in {1, longest}:
            other = max(lengths, key=lambda column: lengths[column])
            raise InvalidArgumentError(
                f"input {name!r}: {longest} examples expected, as of {other!r}, or one for all, got {length}"
            )
    return columns
