"""A growing multiset of scores with two weights each, compacted periodically by adding up equal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIN_PENDING = 1 << 20
"""Rows that may wait unsorted: of the order of a large batch, so that small batches do not each pay for a sort."""


class ScoreStore:
    """Weights of label 1 and of label 0 by key; the keys are scores, or groups and scores.

    Rows are appended unsorted until more are unsorted than sorted (and at least a million); then all are sorted and
    equal keys added up. So adding costs O(log n) per row on average, however small the batches are.

    Args:
        key_dtypes: One per key, the most significant first.
        device: Device of the rows.
    """

    def __init__(self, key_dtypes: tuple[torch.dtype, ...], device: torch.device) -> None:
        dtypes = (*key_dtypes, torch.float64, torch.float64)
        self._num_keys = len(key_dtypes)
        self._sorted = tuple(torch.zeros(0, dtype=dtype, device=device) for dtype in dtypes)
        self._pending: list[tuple[Tensor, ...]] = []
        self._num_pending = 0

    def add(self, *columns: Tensor) -> None:
        """Adds rows: the keys, then the weights of label 1 and of label 0. The tensors are kept: pass copies."""
        if len(columns[0]) == 0:
            return
        self._pending.append(columns)
        self._num_pending += len(columns[0])
        if self._num_pending > max(_MIN_PENDING, len(self._sorted[0])):
            self.rows()

    def rows(self) -> tuple[Tensor, ...]:
        """Returns distinct keys in ascending order, and the weights of both labels at each."""
        if self._pending:
            columns = zip(self._sorted, *self._pending, strict=True)
            self._sorted = add_up_equal(tuple(torch.cat(parts) for parts in columns), self._num_keys)
            self._pending, self._num_pending = [], 0
        return self._sorted


def add_up_equal(columns: tuple[Tensor, ...], num_keys: int) -> tuple[Tensor, ...]:
    """Returns rows in the order of their first `num_keys` columns, those with equal keys added up; at least one row."""
    order = columns[num_keys - 1].argsort(stable=True)
    for key in reversed(columns[: num_keys - 1]):
        order = order[key[order].argsort(stable=True)]
    columns = tuple(column[order] for column in columns)
    is_first = run_starts(columns[:num_keys])
    run = is_first.cumsum(0) - 1
    num_runs = int(run[-1]) + 1
    sums = (column.new_zeros(num_runs).index_add_(0, run, column) for column in columns[num_keys:])
    return (*(column[is_first] for column in columns[:num_keys]), *sums)


def run_starts(keys: tuple[Tensor, ...]) -> Tensor:
    """Returns True where a row's keys differ from those of the row before it, and at the first row."""
    starts = torch.ones_like(keys[0], dtype=torch.bool)
    if len(starts) > 1:
        changes = [key[1:] != key[:-1] for key in keys]
        starts[1:] = torch.stack(changes).any(dim=0)
    return starts


def require_one_length(subject: str, state: Mapping[str, Tensor]) -> None:
    """Raises if the columns of a state are not flat or differ in length."""
    shapes = {name: list(tensor.shape) for name, tensor in state.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len({tuple(shape) for shape in shapes.values()}) > 1:
        raise ValueError(f"{subject}: the tensors of a state must be flat and of one length, got shapes {shapes}")
