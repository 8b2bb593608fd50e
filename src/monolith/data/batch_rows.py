"""Batches cut and joined by rows, and with other columns; every column stays what it is."""

from __future__ import annotations

import operator
from itertools import chain, compress
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from monolith.data.batch import Batch, ColumnValues
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["concat_batches", "keep_rows", "take_rows", "with_columns"]


def take_rows(batch: Batch, rows: Tensor) -> Batch:
    """The rows of these numbers (int64 [n], in any order, as often as they stand there), or where a bool [B] is true.

    >>> batch = Batch({"item": torch.tensor([7, 8, 9]), "city": [b"Rome", b"Oslo", b"Bern"]}, num_rows=3)
    >>> dict(take_rows(batch, torch.tensor([2, 0, 0])))
    {'item': tensor([9, 7, 7]), 'city': [b'Bern', b'Rome', b'Rome']}
    """
    if rows.dtype == torch.bool:
        if rows.shape != (batch.num_rows,):
            raise ValueError(f"rows must be bool [{batch.num_rows}], got shape {list(rows.shape)}")
        texts_rows: Tensor = rows
        rows = rows.nonzero().view(-1)
    elif rows.dtype == torch.int64 and rows.ndim == 1:
        texts_rows = rows
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < batch.num_rows:
            raise ValueError(f"rows must be from 0 to {batch.num_rows - 1}, got {int(rows.min())} to {int(rows.max())}")
    else:
        raise TypeError(f"rows must be bool or int64 of one dim, got {rows.dtype} of {rows.ndim}")
    on_device: dict[torch.device, Tensor] = {}
    columns: dict[str, ColumnValues] = {}
    for name, values in batch.items():
        if isinstance(values, list):
            columns[name] = _take_texts(values, texts_rows)
            continue
        numbers = on_device.setdefault(values.device, rows.to(values.device))
        columns[name] = values[numbers] if isinstance(values, Ragged) else values.index_select(0, numbers)
    return Batch(columns, num_rows=len(rows))


def keep_rows(batch: Batch, rows: Tensor) -> Batch | None:
    """The rows where a bool [B] is true; the batch itself where that is all of them, None where it is none."""
    count = int(rows.count_nonzero())
    if count == 0:
        return None
    return batch if count == batch.num_rows else take_rows(batch, rows)


def concat_batches(batches: Sequence[Batch]) -> Batch:
    """All rows of the first batch, then those of the next, and so on.

    Raises:
        ValueError: none given, or batches whose columns differ in name, kind or inner dims; names the first difference.
    """
    if not batches:
        raise ValueError("concat_batches: at least one batch is needed, got none")
    first = batches[0]
    if len(batches) == 1:
        return first
    for number, batch in enumerate(batches[1:], start=1):
        if batch.keys() != first.keys():
            odd = ", ".join(sorted(batch.keys() ^ first.keys()))
            raise ValueError(f"concat_batches: batch {number} and batch 0 differ in the columns {odd}")
    columns = {name: _concat(name, [batch[name] for batch in batches]) for name in first}
    return Batch(columns, num_rows=sum(batch.num_rows for batch in batches))


def with_columns(batch: Batch, columns: Mapping[str, ColumnValues]) -> Batch:
    """The batch with these columns put in place of those of the same name, or added behind the others."""
    return Batch({**batch, **columns}, num_rows=batch.num_rows)


def _take_texts(values: list[bytes], rows: Tensor) -> list[bytes]:
    if rows.dtype == torch.bool:
        return list(compress(values, rows.tolist()))
    numbers = rows.tolist()
    if len(numbers) < 2:
        return [values[number] for number in numbers]
    return list(operator.itemgetter(*numbers)(values))


def _concat(name: str, parts: list[ColumnValues]) -> ColumnValues:
    first = parts[0]
    for number, part in enumerate(parts):
        if type(part) is not type(first):
            kinds = f"{type(part).__name__} and {type(first).__name__}"
            raise ValueError(f"concat_batches: column {name!r} of batch {number} and of batch 0 are {kinds}")
    if isinstance(first, list):
        return list(chain.from_iterable(cast("list[list[bytes]]", parts)))
    if isinstance(first, Ragged):
        return Ragged.concat(cast("list[Ragged]", parts))
    tensors = cast("list[Tensor]", parts)
    for number, tensor in enumerate(tensors):
        if tensor.shape[1:] != first.shape[1:] or tensor.dtype != first.dtype:
            kinds = f"{tensor.dtype} {list(tensor.shape)} and {first.dtype} {list(first.shape)}"
            raise ValueError(f"concat_batches: column {name!r} of batch {number} and of batch 0 are {kinds}")
    return torch.cat(tensors)
