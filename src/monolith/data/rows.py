"""The rows of an element, whatever it is: of a `Batch` its samples, of `Records` its records; anything else is one row.

Stages that reorder or cut a stream (`batch`, `shuffle`, `split`, `filter`) work on rows, many at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from monolith.data.batch import Batch
from monolith.data.batch_rows import concat_batches, take_rows
from monolith.data.records.records import Records

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

RowNumbers: TypeAlias = "slice | npt.NDArray[np.int64]"
"""Which rows: a slice without a step, or their numbers, in the order in which they are wanted."""

__all__ = ["RowNumbers", "has_rows", "join_rows", "num_rows_of", "select_rows"]


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
    """Returns a stretch of rows, without a copy of tensors."""
    return Batch(
        {name: values[rows] for name, values in batch.items()},
        num_rows=len(range(batch.num_rows)[rows]),
        texts=batch.texts,
    )
