"""The columns of some samples, ready for a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from torch.utils.data._utils.collate import default_collate_fn_map

from monolith.data.batch_packing import pack_columns, unpack_columns
from monolith.tensors import Ragged

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from monolith.data.text_ids import TextColumn

ColumnValues: TypeAlias = "Tensor | Ragged | list[bytes]"
"""Values of a column: one row for each sample."""


class Batch(Mapping[str, ColumnValues]):
    """Column name to values, all of `num_rows` rows; default: that of the columns.

    >>> import torch
    >>> batch = Batch({"user": Ragged.from_lists([[7], [3, 9]]), "label": torch.ones(2, 1)}, num_rows=2)
    >>> batch["user"], batch.num_rows
    (Ragged([[7], [3, 9]], dtype=torch.int64), 2)
    """

    __slots__ = ("_columns", "_num_rows", "_texts")

    def __init__(
        self,
        columns: Mapping[str, ColumnValues],
        *,
        num_rows: int | None = None,
        texts: Mapping[str, TextColumn] | None = None,
    ) -> None:
        if num_rows is None:
            num_rows = next((_rows_of(values) for values in columns.values()), 0)
        for name, values in columns.items():
            rows = _rows_of(values)
            if rows != num_rows:
                raise ValueError(f"column {name!r} must have {num_rows} rows, got {rows}")
        self._columns = dict(columns)
        self._num_rows = num_rows
        self._texts = {} if not texts else {name: each for name, each in texts.items() if name in columns}

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        return self._num_rows

    @property
    def texts(self) -> Mapping[str, TextColumn]:
        """Columns of ids that were texts, and how they became ids; an export keeps it, so that requests have texts."""
        return self._texts

    def __getitem__(self, name: str) -> ColumnValues:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"batch has no column {name!r}; it has {', '.join(self._columns) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Batch({self._num_rows} rows: {', '.join(self._columns)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels to another process in one piece."""
        return _from_packed, (*pack_columns(self._columns), self._num_rows, self._texts)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Returns the batch on a device; byte strings stay on the host."""
        columns = {
            name: values if isinstance(values, list) else values.to(device, non_blocking=non_blocking)
            for name, values in self._columns.items()
        }
        return Batch(columns, num_rows=self._num_rows, texts=self._texts)

    def pin_memory(self) -> Batch:
        """Returns the batch in pinned memory, from which copies to a GPU are asynchronous."""
        columns = {
            name: values if isinstance(values, list) else values.pin_memory() for name, values in self._columns.items()
        }
        return Batch(columns, num_rows=self._num_rows, texts=self._texts)


def _from_packed(packed: Any, form: Any, num_rows: int, texts: Mapping[str, TextColumn]) -> Batch:
    return Batch(unpack_columns(packed, form), num_rows=num_rows, texts=texts)


def _rows_of(values: ColumnValues) -> int:
    return values.num_rows if isinstance(values, Ragged) else len(values)


def _refuse_to_collate(batches: Sequence[Batch], **_: object) -> NoReturn:
    """Stands for what a DataLoader would make of several batches."""
    raise ValueError(
        f"DataLoader: expected batch_size=None, got {len(batches)}: a Dataset already returns batches; use"
        " DataLoader(dataset, batch_size=None), and set the batch size with dataset.batch(...)"
    )


default_collate_fn_map[Batch] = _refuse_to_collate
