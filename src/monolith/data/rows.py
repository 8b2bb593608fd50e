"""The rows of an element, whatever it is: of a `Batch` its samples, of `Records` its records; anything else is one row.

What reorders or cuts a stream (`batch`, `shuffle`, `split`, `filter`) does it by rows, many at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor

from monolith.data.batch import Batch
from monolith.data.records import Records
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from monolith.data.batch import ColumnValues

RowNumbers: TypeAlias = "slice | npt.NDArray[np.int64]"
"""Which rows: a slice without a step, or their numbers, in the order in which they are wanted."""

__all__ = ["RowNumbers", "has_rows", "join_rows", "num_rows_of", "select_rows"]


def has_rows(element: object) -> bool:
    """Whether the element is a block of rows, rather than one row."""
    return isinstance(element, Batch | Records)


def num_rows_of(element: object) -> int:
    """How many rows it is."""
    if isinstance(element, Batch):
        return element.num_rows
    return len(element) if isinstance(element, Records) else 1


def select_rows(block: Any, rows: RowNumbers) -> Any:
    """Some rows of a `Batch` or of `Records`, in the order given."""
    if isinstance(block, Records):
        return block[rows] if isinstance(rows, slice) else block.take(rows)
    chosen = rows if isinstance(rows, slice) else torch.from_numpy(rows)
    count = len(range(block.num_rows)[rows]) if isinstance(rows, slice) else len(rows)
    return Batch({name: _select(values, chosen) for name, values in block.items()}, num_rows=count)


def join_rows(blocks: Sequence[Any]) -> Any:
    """The rows of blocks of one kind, one block after another.

    Raises:
        TypeError: blocks of different kinds.
        ValueError: batches of different columns; says which.
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if any(type(block) is not type(first) for block in blocks):
        kinds = sorted({type(block).__name__ for block in blocks})
        raise TypeError(f"rows to join must be of one kind, got {' and '.join(kinds)}")
    if isinstance(first, Records):
        return Records.join(blocks)
    for block in blocks:
        if block.keys() != first.keys():
            raise ValueError(
                f"batches to join must have the same columns, got {', '.join(first)} and then {', '.join(block)}"
            )
    columns = {name: _join([block[name] for block in blocks], name) for name in first}
    return Batch(columns, num_rows=sum(block.num_rows for block in blocks))


def _select(values: ColumnValues, rows: slice | Tensor) -> ColumnValues:
    if not isinstance(values, list):
        return values[rows] if isinstance(rows, slice) else values[rows.to(values.device)]
    return values[rows] if isinstance(rows, slice) else [values[row] for row in rows.tolist()]


def _join(parts: list[ColumnValues], name: str) -> ColumnValues:
    if isinstance(parts[0], list):
        return [value for part in cast("list[list[bytes]]", parts) for value in part]
    kinds = {(type(part), part.dtype) for part in parts if not isinstance(part, list)}
    if len(kinds) > 1 or any(isinstance(part, list) for part in parts):
        raise ValueError(f"column {name!r} has different types in batches that are joined")
    try:
        if isinstance(parts[0], Ragged):
            return Ragged.concat(cast("list[Ragged]", parts))
        return torch.cat(cast("list[Tensor]", parts))
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"column {name!r} differs between batches that are joined: {error}") from error
