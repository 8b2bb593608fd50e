"""Rows of columns that are added at the end and read by number: where the item pool keeps features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from monolith.data.batch import Batch, ColumnValues
from monolith.data.operators.column_access import describe_column
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Numbers: TypeAlias = npt.NDArray[np.int64]


class GrowingArray:
    """A NumPy array that grows at its end by doubling; `data` is what is in use."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self._room: npt.NDArray[Any] = np.empty((16, *shape), dtype=dtype)
        self._used = 0

    @property
    def data(self) -> npt.NDArray[Any]:
        """The elements, as a view."""
        return self._room[: self._used]

    def __len__(self) -> int:
        return self._used

    def extend(self, values: npt.NDArray[Any]) -> None:
        """Adds elements at the end."""
        needed = self._used + len(values)
        if needed > len(self._room):
            room = np.empty((max(needed, 2 * len(self._room)), *self._room.shape[1:]), dtype=self._room.dtype)
            room[: self._used] = self.data
            self._room = room
        self._room[self._used : needed] = values
        self._used = needed

    def replace(self, values: npt.NDArray[Any]) -> None:
        """Holds these elements from now on."""
        self._used = 0
        self.extend(values)


class RowStore:
    """Rows of the given columns. Rows are numbered from 0 on until `keep_only` renumbers them.

    Supports ragged columns (of one level), tensors and strings; each column keeps the kind of the first rows.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._parts: dict[str, _ColumnRows] = {}
        self.num_rows = 0

    def append(self, rows: Batch) -> Numbers:
        """Adds the rows, and returns their numbers; refuses a column of another kind than before."""
        for name in self.columns:
            values = rows[name]
            if name not in self._parts:
                self._parts[name] = _rows_for(name, values)
            self._parts[name].check(name, values)
        for name in self.columns:
            self._parts[name].append(rows[name])
        first = self.num_rows
        self.num_rows += rows.num_rows
        return np.arange(first, self.num_rows)

    def take(self, rows: Numbers) -> Batch:
        """Returns the rows of these numbers, in this order."""
        return Batch({name: self._parts[name].take(rows) for name in self._parts}, num_rows=len(rows))

    def keep_only(self, rows: Numbers) -> None:
        """Removes all other rows; these are numbered from 0 on, in this order."""
        kept = self.take(rows)
        self._parts = {}
        self.num_rows = 0
        if len(kept) == len(self.columns):  # not so only before the first rows
            self.append(kept)


class _ColumnRows(ABC):
    """The rows of one column."""

    @abstractmethod
    def append(self, values: Any) -> None: ...

    @abstractmethod
    def take(self, rows: Numbers) -> ColumnValues: ...

    @abstractmethod
    def fits(self, values: ColumnValues) -> bool: ...

    def check(self, name: str, values: ColumnValues) -> None:
        if not self.fits(values):
            kept = describe_column(self.take(np.zeros(0, dtype=np.int64)))
            raise TypeError(f"rows of column {name!r} are kept as {kept}, got {describe_column(values)}")


class _RaggedRows(_ColumnRows):
    def __init__(self, like: Ragged) -> None:
        self._dtype = like.dtype
        self._values = GrowingArray((), like.flat_values[:0].cpu().numpy().dtype)
        self._starts, self._lengths = GrowingArray((), np.int64), GrowingArray((), np.int64)

    def fits(self, values: ColumnValues) -> bool:
        return isinstance(values, Ragged) and values.ndim == 2 and values.dtype == self._dtype

    def append(self, values: Ragged) -> None:
        values = values.to("cpu")
        self._starts.extend(values.row_splits[:-1].numpy() + len(self._values))
        self._lengths.extend(values.lengths().numpy())
        self._values.extend(values.flat_values.numpy())

    def take(self, rows: Numbers) -> Ragged:
        lengths: Numbers = self._lengths.data[rows]
        ends = np.cumsum(lengths)
        shifts = self._starts.data[rows] - (ends - lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(shifts, lengths)
        return Ragged.from_lengths(torch.from_numpy(self._values.data[places]), torch.from_numpy(lengths))


class _DenseRows(_ColumnRows):
    def __init__(self, like: Tensor) -> None:
        self._values = GrowingArray(tuple(like.shape[1:]), like[:0].cpu().numpy().dtype)
        self._dtype = like.dtype

    def fits(self, values: ColumnValues) -> bool:
        shape = self._values.data.shape[1:]
        return isinstance(values, Tensor) and values.dtype == self._dtype and tuple(values.shape[1:]) == shape

    def append(self, values: Tensor) -> None:
        self._values.extend(values.detach().cpu().numpy())

    def take(self, rows: Numbers) -> Tensor:
        return torch.from_numpy(self._values.data[rows])


class _TextRows(_ColumnRows):
    def __init__(self) -> None:
        self._texts = GrowingArray((), object)

    def fits(self, values: ColumnValues) -> bool:
        return isinstance(values, list)

    def append(self, values: list[bytes]) -> None:
        texts = np.empty(len(values), dtype=object)
        texts[:] = values
        self._texts.extend(texts)

    def take(self, rows: Numbers) -> list[bytes]:
        return list(self._texts.data[rows])


def _rows_for(name: str, values: ColumnValues) -> _ColumnRows:
    if isinstance(values, list):
        return _TextRows()
    if isinstance(values, Ragged):
        if values.ndim != 2:
            raise TypeError(f"rows of column {name!r} cannot be kept: expected one level of rows, got rows of rows")
        return _RaggedRows(values)
    return _DenseRows(values)
