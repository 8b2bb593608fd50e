"""Between rows and Python: nested lists into one flat tensor, and rows into the text of a repr."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

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
