"""Rows of batches, cut and joined, and the rows of any element.

The rows of a `Batch` are its samples, those of `Records` its records; anything else is one row. Stages that reorder or
cut a stream (`batch`, `shuffle`, `split`, `filter`) work on rows, many at a time.
"""

from __future__ import annotations

import operator
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor

from monolith.data.batch import Batch, ColumnValues
from monolith.data.records.records import Records
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt


def take_rows(batch: Batch, rows: Tensor) -> Batch:
    """Returns the rows of these numbers (int64 [n], in any order, with repetitions), or where a bool [B] is true.

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
    alike: dict[tuple[torch.dtype, torch.device], dict[str, Ragged]] = {}
    for name, values in batch.items():
        if isinstance(values, list):
            columns[name] = _take_texts(values, texts_rows)
            continue
        numbers = on_device.setdefault(values.device, rows.to(values.device))
        if isinstance(values, Ragged) and values.ndim == 2:
            alike.setdefault((values.dtype, values.device), {})[name] = values
            columns[name] = values  # keeps its place among the columns
        else:
            columns[name] = values[numbers] if isinstance(values, Ragged) else values.index_select(0, numbers)
    for (_, device), raggeds in alike.items():
        columns |= zip(raggeds, _take_ragged(list(raggeds.values()), on_device[device]), strict=True)
    return Batch(columns, num_rows=len(rows), texts=batch.texts)


def keep_rows(batch: Batch, rows: Tensor) -> Batch | None:
    """Returns the rows where a bool [B] is true; the batch itself if that is all of them, None if it is none."""
    count = int(rows.count_nonzero())
    if count == 0:
        return None
    return batch if count == batch.num_rows else take_rows(batch, rows)


def concat_batches(batches: Sequence[Batch]) -> Batch:
    """Concatenates the rows of batches; an error names the first column that differs in name, kind or inner dims."""
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
    texts = first.texts
    for batch in batches[1:]:
        if batch.texts != texts:  # of two files, one may have numbers
            texts = {name: column for name, column in texts.items() if batch.texts.get(name) == column}
    return Batch(columns, num_rows=sum(batch.num_rows for batch in batches), texts=texts)


def with_columns(batch: Batch, columns: Mapping[str, ColumnValues]) -> Batch:
    """Returns the batch with these columns, replacing those of the same name, or added after the others."""
    texts = {name: column for name, column in batch.texts.items() if name not in columns}
    return Batch({**batch, **columns}, num_rows=batch.num_rows, texts=texts)


def _take_ragged(columns: list[Ragged], rows: Tensor) -> Iterator[Ragged]:
    """Yields the rows of many columns of one type, with as many calls as for one column: a batch has tens of them."""
    splits = torch.stack([column.row_splits for column in columns])
    starts, sizes = splits[:, :-1], splits[:, -1]
    lengths = (splits[:, 1:] - starts).index_select(1, rows)
    # Where each row begins in the values of all columns end to end, less where it will begin: how far it moves.
    begins = starts.index_select(1, rows) + (sizes.cumsum(0) - sizes)[:, None]
    flat_lengths = lengths.reshape(-1)
    ends = flat_lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    moves = torch.repeat_interleave(begins.reshape(-1) - (ends - flat_lengths), flat_lengths, output_size=total)
    values = torch.cat([column.flat_values for column in columns])
    taken = values.index_select(0, moves.add_(torch.arange(total, device=rows.device)))
    new_splits = torch.nn.functional.pad(lengths.cumsum(1), (1, 0))
    parts = torch.split(taken, new_splits[:, -1].tolist())
    return (Ragged(part, own, validate=False) for part, own in zip(parts, new_splits.unbind(), strict=True))


def _take_texts(values: list[bytes], rows: Tensor) -> list[bytes]:
    numbers = rows.tolist()
    if rows.dtype == torch.bool:
        return list(compress(values, numbers))
    if len(numbers) < 2:
        return [values[number] for number in numbers]
    return list(operator.itemgetter(*numbers)(values))  # twice as fast as one by one


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


RowNumbers: TypeAlias = "slice | npt.NDArray[np.int64]"
"""Which rows: a slice without a step, or their numbers, in the order in which they are wanted."""


def has_rows(element: object) -> bool:
    """Returns whether the element is a block of rows, rather than one row."""
    return isinstance(element, Batch | Records)


def num_rows_of(element: object) -> int:
    """Returns the number of rows of an element."""
    if isinstance(element, Batch):
        return element.num_rows
    return len(element) if isinstance(element, Records) else 1


def select_rows(block: Any, rows: RowNumbers) -> Any:
    """Returns some rows of a `Batch` or of `Records`, in the order given."""
    if isinstance(rows, slice):
        return block[rows] if isinstance(block, Records) else _slice(block, rows)
    return block.take(rows) if isinstance(block, Records) else take_rows(block, torch.from_numpy(rows))


def join_rows(blocks: Sequence[Any]) -> Any:
    """Concatenates the rows of blocks of one kind.

    Raises:
        TypeError: blocks of different kinds.
        ValueError: batches have different columns; names them.
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if any(type(block) is not type(first) for block in blocks):
        kinds = sorted({type(block).__name__ for block in blocks})
        raise TypeError(f"rows to join must be of one kind, got {' and '.join(kinds)}")
    return Records.join(blocks) if isinstance(first, Records) else concat_batches(blocks)


def _slice(batch: Batch, rows: slice) -> Batch:
    columns = {name: values[rows] for name, values in batch.items()}
    return Batch(columns, num_rows=len(range(batch.num_rows)[rows]), texts=batch.texts)
