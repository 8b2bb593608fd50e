"""Columns of ids as users pass them: a row per example, or one row for all examples."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

ColumnInput: TypeAlias = "Ragged | Tensor | NDArray[np.int64] | Sequence[int] | Sequence[Sequence[int]]"
"""The ids of one column: int64 [B], int64 [B, k] or rows of differing length; lists of numbers, too."""

_BY_SPLITS = -1


class IdColumn(NamedTuple):
    """A column whose memory the core can read."""

    ids: Tensor
    """int64 [n], contiguous."""
    splits: Tensor | None
    """int64 [rows + 1]; None: every row has the same number of ids."""
    rows: int

    def for_core(self) -> tuple[int, int, int, int, int]:
        """Returns address and number of ids, ids of each row or -1, address of the splits, number of rows."""
        count = self.ids.shape[0]
        if self.splits is not None:
            return self.ids.data_ptr(), count, _BY_SPLITS, self.splits.data_ptr(), self.rows
        return self.ids.data_ptr(), count, count // self.rows if self.rows else 0, 0, self.rows


def id_column(columns: Mapping[str, object], name: str) -> IdColumn:
    """Returns a column of ids.

    Raises:
        InvalidArgumentError: the column is missing, or does not hold ids.
    """
    given = columns.get(name)
    if isinstance(given, Ragged):
        return _of_ragged(given, name)
    ids = given if isinstance(given, Tensor) else _as_tensor(columns, name)
    if isinstance(ids, Ragged):
        return _of_ragged(ids, name)
    _require_ids(ids, name)
    if ids.ndim == 1:
        return IdColumn(ids.contiguous(), None, ids.shape[0])
    if ids.ndim == 2:
        return IdColumn(ids.reshape(-1), None, ids.shape[0])
    raise InvalidArgumentError(
        f"column {name!r}: ids must be [examples], [examples, ids of each] or ragged, got shape {tuple(ids.shape)}"
    )


def num_examples_of(rows: Mapping[str, int]) -> int:
    """Returns the number of examples of columns with these numbers of rows; one row applies to all examples.

    Raises:
        InvalidArgumentError: the numbers of rows differ.
    """
    counts = {count for count in rows.values() if count != 1}
    if len(counts) > 1:
        told = ", ".join(f"{name!r} {count}" for name, count in rows.items() if count != 1)
        raise InvalidArgumentError(f"columns must have as many examples as the others, or one for all; got {told}")
    return counts.pop() if counts else 1


def _of_ragged(ids: Ragged, name: str) -> IdColumn:
    values, splits = ids.values, ids.row_splits
    if isinstance(values, Ragged) or values.ndim != 1:
        raise InvalidArgumentError(f"column {name!r}: ids must be rows of plain numbers, got {ids!r}")
    _require_ids(values, name)
    if splits.dtype != torch.int64 or splits.ndim != 1 or splits.shape[0] == 0 or not splits.is_cpu:
        raise InvalidArgumentError(f"column {name!r}: row_splits must be int64 [examples + 1] on the CPU")
    return IdColumn(values.contiguous(), splits.contiguous(), ids.num_rows)


def _as_tensor(columns: Mapping[str, object], name: str) -> Tensor | Ragged:
    given = columns.get(name)
    if given is None:
        close = difflib.get_close_matches(name, map(str, columns), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, columns)) or 'nothing'}"
        raise InvalidArgumentError(f"column {name!r}: the request has no ids for it; {hint}")
    if isinstance(given, np.ndarray):
        return _of_array(given, name)
    if isinstance(given, list | tuple):
        return _of_list(given, name)
    raise InvalidArgumentError(
        f"column {name!r}: ids must be a tensor, Ragged, array or list, got {type(given).__name__}"
    )


def _of_array(given: NDArray[np.generic], name: str) -> Tensor:
    if given.dtype != np.int64:
        raise InvalidArgumentError(f"column {name!r}: ids must be int64, got {given.dtype}")
    return torch.from_numpy(np.ascontiguousarray(given))


def _of_list(given: Sequence[object], name: str) -> Tensor | Ragged:
    rows = [each if isinstance(each, list | tuple) else [each] for each in given]
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
