"""Membership tests of the rows of a ragged column, vectorized over all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from monolith.tensors import Ragged

__all__ = ["rows_with_all", "rows_with_any", "top_ranks"]


def rows_with_any(rows: Ragged, wanted: Tensor) -> Tensor:
    """Returns which rows contain one of the wanted values; bool [B]. `wanted` is sorted and without duplicates."""
    found = torch.zeros(rows.num_rows, dtype=torch.bool, device=rows.device)
    matches = _places(rows.flat_values, wanted) >= 0
    found[rows.value_rowids()[matches]] = True
    return found


def rows_with_all(columns: list[Ragged], wanted: Tensor) -> Tensor:
    """Returns which rows contain every wanted value, in one of the columns or another; bool [B]."""
    count = len(wanted)
    pairs = []
    for rows in columns:
        places = _places(rows.flat_values, wanted)
        pairs.append((rows.value_rowids() * count + places)[places >= 0])
    distinct = torch.unique(torch.cat(pairs))
    return torch.bincount(distinct // max(count, 1), minlength=columns[0].num_rows) == count


def top_ranks(rows: Ragged, priority: Tensor) -> Tensor:
    """Returns the rank of each row's first value by priority, int64 [B]; ``len(priority)`` if it has none."""
    ordered, order = torch.sort(priority)
    places = _places(rows.flat_values, ordered)
    matched = places >= 0
    ranks = torch.full((rows.num_rows,), len(priority), dtype=torch.int64, device=rows.device)
    return ranks.scatter_reduce_(
        0, rows.value_rowids()[matched], order.to(rows.device)[places[matched]], "amin", include_self=True
    )


def _places(values: Tensor, ordered: Tensor) -> Tensor:
    """Returns the index of each value in the sorted tensor, -1 if it is missing."""
    if len(ordered) == 0:
        return torch.full_like(values, -1)
    ordered = ordered.to(values.device)
    places = torch.searchsorted(ordered, values.contiguous()).clamp_(max=len(ordered) - 1)
    return torch.where(ordered[places] == values, places, -1)
