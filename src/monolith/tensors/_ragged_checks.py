"""The checks of `Ragged`, each with one wait for a GPU at most, and its conversions from lists and to text."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_row_splits(row_splits: Tensor, *, num_values: int, device: torch.device) -> None:
    """Checks that splits are int64 [B + 1] on the device of the values, and rise from 0 to their number."""
    if not isinstance(row_splits, Tensor):
        raise TypeError(f"row_splits must be an int64 tensor, got {type(row_splits).__name__}; see Ragged.from_lengths")
    if row_splits.dtype != torch.int64:
        raise TypeError(f"row_splits must be int64, got {row_splits.dtype}; convert them with .to(torch.int64)")
    if row_splits.ndim != 1 or row_splits.shape[0] == 0:
        raise ValueError(
            f"row_splits must have shape (rows + 1,), got {tuple(row_splits.shape)}; no rows at all are the splits [0]"
        )
    if row_splits.device != device:
        raise ValueError(f"row_splits must be on the device of the values ({device}), got {row_splits.device}")
    if not _readable(row_splits):
        return
    falling = (row_splits[1:] < row_splits[:-1]).any()
    if bool((row_splits[0] != 0) | (row_splits[-1] != num_values) | falling):
        text = ", decreasing in between" if bool(falling) else ""
        raise ValueError(
            f"row_splits must rise from 0 to the number of values ({num_values}), "
            f"got {int(row_splits[0])} to {int(row_splits[-1])}{text}"
        )


def check_lengths(lengths: Tensor, *, num_values: int) -> None:
    """Checks that lengths are not negative and count every value once."""
    if not _readable(lengths):
        return
    negative = (lengths < 0).any()
    # Lengths near the largest int64 may add up to the right number by wrapping round; no single one can be so long.
    if bool(negative | (lengths > num_values).any() | (lengths.sum() != num_values)):
        actual = f"a length of {int(lengths.min())}" if bool(negative) else f"{sum(lengths.tolist())}"
        raise ValueError(f"lengths must be >= 0 and add up to the number of values ({num_values}), got {actual}")


def check_row_ids(row_ids: Tensor, *, num_values: int, num_rows: int) -> None:
    """Checks that row numbers are one for each value, never decrease and name rows that exist."""
    if num_rows < 0:
        raise ValueError(f"num_rows must be >= 0, got {num_rows}")
    if row_ids.shape[0] != num_values:
        raise ValueError(f"row_ids must have one number for each of {num_values} values, got {row_ids.shape[0]}")
    if num_values == 0 or not _readable(row_ids):
        return
    falling = (row_ids[1:] < row_ids[:-1]).any()
    if bool(falling | (row_ids[0] < 0) | (row_ids[-1] >= num_rows)):
        if bool(falling):
            raise ValueError("row_ids must never decrease; sort them first, and the values in the same order")
        raise ValueError(f"row_ids must be in 0..{num_rows - 1}, got {int(row_ids[0])} to {int(row_ids[-1])}")


def index_tensor(numbers: Tensor | Sequence[int], name: str, device: torch.device) -> Tensor:
    """Returns int64 [m] on the device of the values, from a tensor of int32 or int64 or from plain numbers."""
    if not isinstance(numbers, Tensor):
        numbers = torch.tensor([operator.index(number) for number in numbers], dtype=torch.int64, device=device)
    if numbers.dtype not in {torch.int64, torch.int32}:
        raise TypeError(f"{name} must be int64 or int32, got {numbers.dtype}")
    if numbers.ndim != 1:
        raise ValueError(f"{name} must have one dim, got shape {tuple(numbers.shape)}")
    if numbers.device != device:
        raise ValueError(f"{name} must be on the device of the values ({device}), got {numbers.device}")
    return numbers.to(torch.int64)


def row_numbers(rows: Tensor, num_rows: int) -> Tensor:
    """Returns int64 [m]: rows given by their numbers, negative ones counted from the end, or by a bool [B]."""
    if rows.ndim != 1:
        raise ValueError(f"rows to take must have one dim, got shape {tuple(rows.shape)}")
    if rows.dtype == torch.bool:
        if rows.shape[0] != num_rows:
            raise IndexError(f"a bool for each of {num_rows} rows is needed to take rows, got {rows.shape[0]}")
        return rows.nonzero().squeeze(1)
    if rows.dtype not in {torch.int64, torch.int32}:
        raise TypeError(f"rows to take must be int64, int32 or bool, got {rows.dtype}")
    # Checked here because a GPU answers a number out of range by ending the process.
    if bool(((rows < -num_rows) | (rows >= num_rows)).any()):
        raise IndexError(f"rows to take must be in {-num_rows}..{num_rows - 1}, got {rows.tolist()}")
    return torch.where(rows < 0, rows + num_rows, rows).to(torch.int64)


def check_padding(dtype: torch.dtype, fill: complex, length: int | None) -> int | None:
    """Returns the length to pad to, after checking that the dtype can hold the fill."""
    if not (dtype.is_floating_point or dtype.is_complex) and not isinstance(fill, int):
        raise TypeError(f"to_padded: fill must be an int for values of {dtype}, got {fill!r}")
    if length is None:
        return None
    length = operator.index(length)
    if length < 0:
        raise ValueError(f"to_padded: length must be >= 0, got {length}")
    return length


def check_alike(raggeds: Sequence[Any], kind: type) -> None:
    """Checks that all are of one `kind`, the class Ragged, and differ in their rows only."""
    if not raggeds:
        raise ValueError("concat: at least one Ragged is needed, got none")
    for ragged in raggeds:
        if not isinstance(ragged, kind):
            raise TypeError(f"concat: each must be a Ragged, got {type(ragged).__name__}")
    kinds = {
        f"ragged rank {ragged.ragged_rank} of {tuple(ragged.flat_values.shape[1:])} {ragged.dtype} on {ragged.device}"
        for ragged in raggeds
    }
    if len(kinds) > 1:
        raise ValueError(
            f"concat: all must have the same ragged rank, inner dims, dtype and device, got {', '.join(sorted(kinds))}"
        )


def _readable(tensor: Tensor) -> bool:
    """Returns whether numbers can be read: not while a graph is traced, nor of a tensor without storage."""
    return not (torch.compiler.is_compiling() or tensor.is_meta)


MAX_SHOWN = 20
"""A repr shows the rows themselves up to this many rows and numbers."""


def flatten_lists(lists: Sequence[Any], dtype: torch.dtype) -> tuple[torch.Tensor, list[list[int]]]:
    """Returns the numbers in order, and the lengths of the lists of each level, outermost first."""
    levels: list[list[int]] = []
    items = _checked_rows(lists, "lists")
    while True:
        levels.append([len(row) for row in items])
        items = list(itertools.chain.from_iterable(items))
        kinds = set(map(type, items))
        if not any(issubclass(kind, list | tuple) for kind in kinds):
            return _numbers(items, dtype), levels
        items = _checked_rows(items, f"lists of level {len(levels) + 1}")


def _checked_rows(rows: Sequence[Any], subject: str) -> list[Any]:
    for index, row in enumerate(rows):
        if not isinstance(row, list | tuple):
            raise TypeError(
                f"from_lists: {subject} must hold lists or tuples only, got {type(row).__name__} at {index}; "
                "for tensors, see Ragged.from_lengths(torch.cat(rows), lengths)"
            )
    return list(rows)


def _numbers(items: list[Any], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor of exactly these numbers."""
    try:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.tensor(items, dtype=dtype)
        if dtype == torch.bool:
            return torch.tensor(_all_bool(items), dtype=dtype)
        # `operator.index` refuses a float, which torch would cut to an integer.
        numbers = torch.from_numpy(np.fromiter(map(operator.index, items), np.int64, len(items)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"from_lists: rows must hold numbers of {dtype}: {error}") from error
    except (OverflowError, RuntimeError) as error:
        raise ValueError(f"from_lists: rows must hold numbers of {dtype}: {error}") from error
    if dtype == torch.int64:
        return numbers
    narrow = numbers.to(dtype)
    if not torch.equal(narrow.to(torch.int64), numbers):
        raise ValueError(f"from_lists: rows must hold numbers of {dtype}, got {numbers.min()} to {numbers.max()}")
    return narrow


def _all_bool(items: list[Any]) -> list[Any]:
    for item in items:
        if not isinstance(item, bool | np.bool_):
            raise TypeError(f"got {item!r}")
    return items


def text_of(rows: Any) -> str:
    """Returns rows as nested lists, floats with four digits as torch prints them."""
    if isinstance(rows, list):
        return f"[{', '.join(map(text_of, rows))}]"
    return repr(float(f"{rows:.4g}")) if isinstance(rows, float) else repr(rows)
