"""Parses the inputs of requests for rows into arrays of the types and shapes of a signature; errors name the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from monolith.errors import InvalidArgumentError
from monolith.tables import UNTOLD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from monolith.serving.tensor_messages import Strings

Inputs: TypeAlias = "Mapping[str, torch.Tensor | Strings]"


class RawRequest(NamedTuple):
    """One of several stacked requests."""

    keys: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int64]
    """[T + 1]: offsets of the keys of each table."""
    buckets: npt.NDArray[np.int32] | None


def require_inputs(inputs: Inputs, needed: Sequence[str], optional: Sequence[str]) -> None:
    """Rejects missing or unknown inputs."""
    missing = [name for name in needed if name not in inputs]
    unknown = sorted(inputs.keys() - {*needed, *optional})
    if missing or unknown:
        raise InvalidArgumentError(
            f"shard: inputs {', '.join(needed)} expected, got {', '.join(sorted(inputs)) or 'none'}"
        )


def numbers_in(inputs: Inputs, name: str, dtype: type[np.generic], *, dims: int = 1) -> npt.NDArray[Any] | None:
    """Returns an input as an array; None if it is missing.

    Raises:
        InvalidArgumentError: the input has another type or shape.
    """
    return needed_numbers(inputs, name, dtype, dims=dims) if name in inputs else None


def needed_numbers(inputs: Inputs, name: str, dtype: type[np.generic], *, dims: int = 1) -> npt.NDArray[Any]:
    """Returns an input as an array. REQUIRES: the input exists."""
    values = inputs[name]
    kind = str(values.dtype).removeprefix("torch.")
    if kind != np.dtype(dtype).name or values.ndim != dims:
        shape = list(values.shape)
        raise InvalidArgumentError(
            f"{name}: {np.dtype(dtype).name} of {dims} dims expected, got {kind} of shape {shape}"
        )
    return np.ascontiguousarray(values.numpy() if isinstance(values, torch.Tensor) else values)


def rows_in(inputs: Inputs, name: str, count: int, dim: int) -> npt.NDArray[np.float32]:
    """Returns rows [count, dim]; the input may be missing if `count` is 0."""
    values = numbers_in(inputs, name, np.float32, dims=2)
    rows = np.empty((0, dim), np.float32) if values is None else values
    if rows.shape != (count, dim):
        raise InvalidArgumentError(f"{name}: [{count}, {dim}] expected, got {list(rows.shape)}")
    return rows


def table_buckets(
    inputs: Inputs, names: Sequence[str], keys: Sequence[npt.NDArray[np.int64] | None]
) -> npt.NDArray[np.int32] | None:
    """Returns the buckets of all keys, from ``<table>_bucket`` of each table; None if no table has them."""
    if not any(f"{name}_bucket" in inputs for name in names):
        return None
    parts = []
    for name, own in zip(names, keys, strict=True):
        count = 0 if own is None else len(own)
        buckets = numbers_in(inputs, f"{name}_bucket", np.int32)
        parts.append(np.full(count, UNTOLD, np.int32) if buckets is None else buckets)
        if len(parts[-1]) != count:
            raise InvalidArgumentError(
                f"{name}_bucket: {count} buckets expected, one for each key, got {len(parts[-1])}"
            )
    return np.concatenate(parts)


def stacked_requests(inputs: Inputs, num_tables: int) -> Iterator[RawRequest]:
    """Yields the requests of ``id`` and ``id_split``, each with its own split; usually there is one."""
    keys = needed_numbers(inputs, "id", np.int64)
    flat_splits = needed_numbers(inputs, "id_split", np.int64)
    buckets = numbers_in(inputs, "bucket", np.int32)
    if buckets is not None and len(buckets) != len(keys):
        raise InvalidArgumentError(f"bucket: {len(keys)} buckets expected, one for each id, got {len(buckets)}")
    width = num_tables + 1
    if len(flat_splits) % width:
        raise InvalidArgumentError(
            f"id_split: {width} numbers expected for {num_tables} tables, got {len(flat_splits)}"
        )
    splits = flat_splits.reshape(-1, width)
    if (splits[:, 0] != 0).any() or (np.diff(splits) < 0).any() or (splits[:, -1] > len(keys)).any():
        raise InvalidArgumentError(
            f"id_split: numbers from 0 upwards, to the number of ids, expected; got {_shown(flat_splits)}"
        )
    if splits[:, -1].sum() != len(keys):
        raise InvalidArgumentError(f"id: {int(splits[:, -1].sum())} ids expected by id_split, got {len(keys)}")
    return _requests(keys, splits, buckets)


def _requests(
    keys: npt.NDArray[np.int64], splits: npt.NDArray[np.int64], buckets: npt.NDArray[np.int32] | None
) -> Iterator[RawRequest]:
    at = 0
    for own in splits:
        end = at + int(own[-1])
        yield RawRequest(keys[at:end], own, None if buckets is None else buckets[at:end])
        at = end


def _shown(numbers: npt.NDArray[np.int64]) -> str:
    return f"{numbers[:8].tolist()}{'...' if len(numbers) > 8 else ''}"
