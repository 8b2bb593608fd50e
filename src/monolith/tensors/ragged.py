"""Rows of differing length in two flat tensors: how a batch carries the ids of a slot.

Dims: B rows, n values, L values of the longest row::

    rows         [ [7, 3], [], [9, 9, 4] ]
    values       [  7, 3,       9, 9, 4  ]      [n, ...]
    row_splits   [0,     2,  2,         5]      int64 [B + 1]: row i is values[row_splits[i]:row_splits[i + 1]]
    lengths      [  2,     0,     3      ]      int64 [B]
    value_rowids [  0, 0,       2, 2, 2  ]      int64 [n]

The values may be a `Ragged` themselves (rows of rows), so a batch of sequences of sets needs no padding either. Values
may carry further, uniform dims, and gradients: every method that moves values is differentiable.

Nothing here loops over rows in Python, except conversions from and to lists.
"""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

import torch
import torch.serialization
from torch import Tensor
from torch.utils import _pytree as pytree

from monolith.tensors._ragged_checks import (
    MAX_SHOWN,
    check_alike,
    check_lengths,
    check_padding,
    check_row_ids,
    check_row_splits,
    flatten_lists,
    index_tensor,
    row_numbers,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


Values: TypeAlias = "Tensor | Ragged"
"""The values that are cut into rows."""


class Ragged:
    """Rows of differing length: `values` [n, ...] (Tensor or Ragged) cut by `row_splits` int64 [B + 1].

    A value like a tensor: it is not changed once built, and may be read by any number of threads. The two parts are on
    one device. It can be pickled and copied, loaded by ``torch.load(weights_only=True)``, pinned and collated like a
    tensor, and is a pytree node, so it can be passed to and returned from functions under ``torch.compile``.

    Args:
        values: Tensor [n, ...], or a `Ragged` of n rows.
        row_splits: int64 [B + 1]; starts at 0, never decreases, ends at n.
        validate: Check the two. On a GPU this waits for the device once; skip it for parts that are correct for sure.
            Under ``torch.compile`` the numbers in `row_splits` are never read.

    Raises:
        TypeError: a part that is not a tensor, or splits that are not int64.
        ValueError: splits that do not cut `values`, or live on another device.

    >>> ragged = Ragged(torch.tensor([7, 3, 9, 9, 4]), torch.tensor([0, 2, 2, 5]))
    >>> ragged
    Ragged([[7, 3], [], [9, 9, 4]], dtype=torch.int64)
    >>> ragged[2], ragged.lengths()
    (tensor([9, 9, 4]), tensor([2, 0, 3]))
    >>> ragged.to_padded(fill=-1, length=2)
    tensor([[ 7,  3],
            [-1, -1],
            [ 9,  9]])
    """

    __slots__ = ("__weakref__", "_row_ids", "_row_splits", "_values")

    _values: Values
    _row_splits: Tensor
    _row_ids: Tensor | None

    def __init__(self, values: Values, row_splits: Tensor, *, validate: bool = True) -> None:
        if validate:
            check_row_splits(row_splits, num_values=_num_values(values), device=values.device)
        self._values = values
        self._row_splits = row_splits
        self._row_ids = None

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[Any]], *, dtype: torch.dtype = torch.int64) -> Ragged:
        """Makes rows from lists of numbers; lists of lists become rows of rows.

        Args:
            lists: One list or tuple for each row. All numbers have the same depth, which determines the nesting of the
                result.
            dtype: Type of the values. Numbers that it cannot hold are rejected, not rounded or wrapped.

        >>> Ragged.from_lists([[[1, 2], []], [], [[3]]]).values
        Ragged([[1, 2], [], [3]], dtype=torch.int64)
        """
        values, levels = flatten_lists(lists, dtype)
        ragged: Values = values
        for lengths in reversed(levels):
            ragged = cls.from_lengths(ragged, torch.tensor(lengths, dtype=torch.int64), validate=False)
        return cast("Ragged", ragged)

    @classmethod
    def from_lengths(cls, values: Values, lengths: Tensor | Sequence[int], *, validate: bool = True) -> Ragged:
        """Makes rows of these lengths, one after another; int32 or int64 [B], none negative, n in all.

        >>> Ragged.from_lengths(torch.tensor([7, 3, 9]), [2, 0, 1])
        Ragged([[7, 3], [], [9]], dtype=torch.int64)
        """
        num_values = _num_values(values)
        lengths = index_tensor(lengths, "lengths", values.device)
        if validate:
            check_lengths(lengths, num_values=num_values)
        return cls(values, _splits_of(lengths), validate=False)

    @classmethod
    def from_row_ids(
        cls, values: Values, row_ids: Tensor | Sequence[int], num_rows: int, *, validate: bool = True
    ) -> Ragged:
        """Makes rows from the row number of each value; int32 or int64 [n], never decreasing, each in 0..num_rows-1.

        >>> Ragged.from_row_ids(torch.tensor([7, 3, 9]), [0, 0, 2], num_rows=4)
        Ragged([[7, 3], [], [9], []], dtype=torch.int64)
        """
        num_values, num_rows = _num_values(values), operator.index(num_rows)
        row_ids = index_tensor(row_ids, "row_ids", values.device)
        if validate:
            check_row_ids(row_ids, num_values=num_values, num_rows=num_rows)
        # Row numbers are sorted, so the first value of row i comes after all values of the rows before it.
        splits = torch.searchsorted(row_ids, torch.arange(num_rows + 1, device=row_ids.device))
        ragged = cls(values, splits, validate=False)
        ragged._row_ids = row_ids
        return ragged

    @classmethod
    def concat(cls, raggeds: Sequence[Ragged]) -> Ragged:
        """Concatenates all rows of the first, then all rows of the next, and so on.

        Raises:
            ValueError: none given, or ones that differ in dtype, device, nesting or inner dims.

        >>> Ragged.concat([Ragged.from_lists([[7], []]), Ragged.from_lists([[3, 9]])])
        Ragged([[7], [], [3, 9]], dtype=torch.int64)
        """
        raggeds = list(raggeds)
        check_alike(raggeds, Ragged)
        if isinstance(raggeds[0].values, Ragged):
            values: Values = cls.concat([cast("Ragged", ragged.values) for ragged in raggeds])
        else:
            values = torch.cat([cast("Tensor", ragged.values) for ragged in raggeds])
        return cls.from_lengths(values, torch.cat([ragged.lengths() for ragged in raggeds]), validate=False)

    @property
    def values(self) -> Values:
        """[n, ...]: the values of all rows, one row after another."""
        return self._values

    @property
    def row_splits(self) -> Tensor:
        """int64 [B + 1]: where each row starts in `values`, and where the last one ends."""
        return self._row_splits

    @property
    def flat_values(self) -> Tensor:
        """The innermost values, a tensor however often the rows are nested."""
        return self._values.flat_values if isinstance(self._values, Ragged) else self._values

    @property
    def num_rows(self) -> int:
        """Number of rows (B)."""
        return self._row_splits.shape[0] - 1

    @property
    def dtype(self) -> torch.dtype:
        """Type of the values."""
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        """Device of values and splits."""
        return self._values.device

    @property
    def ndim(self) -> int:
        """Number of dims, ragged ones included: 2 for rows of numbers."""
        return self._values.ndim + 1

    @property
    def ragged_rank(self) -> int:
        """Number of dims whose size differs from row to row: 1, or more for rows of rows."""
        return self._values.ragged_rank + 1 if isinstance(self._values, Ragged) else 1

    def lengths(self) -> Tensor:
        """Returns int64 [B]: values of each row."""
        return self._row_splits[1:] - self._row_splits[:-1]

    def value_rowids(self) -> Tensor:
        """Returns int64 [n]: the row number of each value. Computed once; later calls return the same tensor.

        >>> Ragged.from_lists([[], [1], [2, 3]]).value_rowids()
        tensor([1, 2, 2])
        """
        if self._row_ids is not None:
            return self._row_ids
        if torch.compiler.is_compiling():
            # A compiled function may reuse the memory of its intermediate tensors, so none of them is cached.
            return _row_ids(self)
        # The cached tensor outlives the call: one made in inference mode would be rejected by a later backward.
        with torch.inference_mode(False):
            self._row_ids = _row_ids(self)
        return self._row_ids

    def to_lists(self) -> list[list[Any]]:
        """Returns the rows as lists of numbers."""
        values = self._values.to_lists() if isinstance(self._values, Ragged) else self._values.tolist()
        splits = self._row_splits.tolist()
        return [values[begin:end] for begin, end in pairwise(splits)]

    def to_padded(self, fill: complex = 0, length: int | None = None) -> Tensor:
        """Returns [B, L, ...]: the rows side by side, short ones filled up. Rows of rows are filled up at each level.

        Args:
            fill: Stands where a row has no value.
            length: L; longer rows lose their end. None: the length of the longest row, for which a GPU is waited for
                once. Of rows of rows it is the length of the outer ones.
        """
        values = self._values.to_padded(fill) if isinstance(self._values, Ragged) else self._values
        length = check_padding(values.dtype, fill, length)
        if length is None:
            length = int(self.lengths().max()) if self.num_rows else 0
        rows, places = self.value_rowids(), self._places()
        # Values beyond the length go to one place after the last row, which is cut off.
        num_places = self.num_rows * length
        targets = torch.where(places < length, rows * length + places, num_places)
        padded = values.new_full((num_places + 1, *values.shape[1:]), fill).index_copy_(0, targets, values)
        return padded[:num_places].reshape(self.num_rows, length, *values.shape[1:])

    def mask(self, length: int | None = None) -> Tensor:
        """Returns where `to_padded` of the same length has a value of a row, as bool [B, L].

        >>> Ragged.from_lists([[7, 3], [], [9]]).mask().int()
        tensor([[1, 1],
                [0, 0],
                [1, 0]], dtype=torch.int32)
        """
        length = check_padding(self.dtype, 0, length)
        lengths = self.lengths()
        if length is None:
            length = int(lengths.max()) if self.num_rows else 0
        return torch.arange(length, device=lengths.device) < lengths[:, None]

    def with_values(self, values: Values) -> Ragged:
        """Returns other values cut into the same rows, such as the embedding of each id; shares cached row numbers.

        >>> Ragged.from_lists([[7, 3], [9]]).with_values(torch.tensor([0.5, 1.0, 1.5]))
        Ragged([[0.5, 1.0], [1.5]], dtype=torch.float32)
        """
        if _num_values(values) != _num_values(self._values) or values.device != self.device:
            raise ValueError(
                f"with_values: expected {_num_values(self._values)} values on {self.device}, "
                f"got {_num_values(values)} on {values.device}"
            )
        ragged = Ragged(values, self._row_splits, validate=False)
        ragged._row_ids = self._row_ids
        return ragged

    def with_flat_values(self, values: Tensor) -> Ragged:
        """Returns other innermost values cut into the same rows, however often these are nested."""
        inner = self._values
        return self.with_values(inner.with_flat_values(values) if isinstance(inner, Ragged) else values)

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> Ragged:
        """Returns the same rows on another device; itself if they are on it already."""
        values = self._values.to(device, non_blocking=non_blocking)
        row_splits = self._row_splits.to(device, non_blocking=non_blocking)
        if values is self._values and row_splits is self._row_splits:
            return self
        return Ragged(values, row_splits, validate=False)

    def pin_memory(self) -> Ragged:
        """Returns the same rows in page-locked memory, from which a copy to a GPU need not be waited for."""
        return Ragged(self._values.pin_memory(), self._row_splits.pin_memory(), validate=False)

    def equal(self, other: Ragged) -> bool:
        """Returns whether rows, nesting and dtype are equal; both must be on one device. NaN differs from itself."""
        if not isinstance(other, Ragged):
            raise TypeError(f"equal: other must be a Ragged, got {type(other).__name__}")
        if self.ragged_rank != other.ragged_rank or self.dtype != other.dtype:
            return False
        if not torch.equal(self._row_splits, other.row_splits):
            return False
        if isinstance(self._values, Ragged):
            return self._values.equal(cast("Ragged", other.values))
        return torch.equal(self._values, cast("Tensor", other.values))

    def __len__(self) -> int:
        return self.num_rows

    def __iter__(self) -> Iterator[Values]:
        """Yields the rows, with one wait for a GPU in all."""
        splits = self._row_splits.tolist()
        for begin, end in pairwise(splits):
            yield self._values[begin:end]

    @overload
    def __getitem__(self, rows: int) -> Values: ...

    @overload
    def __getitem__(self, rows: slice | Tensor) -> Ragged: ...

    def __getitem__(self, rows: int | slice | Tensor) -> Values:
        """Returns a row by its number, or the `Ragged` of a slice, a tensor of row numbers or a bool tensor [B]."""
        if isinstance(rows, Tensor) and rows.ndim > 0:
            return _take(self, row_numbers(rows, self.num_rows))
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self.num_rows)
            if step != 1:
                return _take(self, torch.tensor(range(start, stop, step), dtype=torch.int64, device=self.device))
            splits = self._row_splits[start : max(start, stop) + 1]
            begin, end = int(splits[0]), int(splits[-1])
            return Ragged(self._values[begin:end], splits - begin, validate=False)
        row = operator.index(rows)
        if not -self.num_rows <= row < self.num_rows:
            raise IndexError(f"row {row} of a Ragged of {self.num_rows} rows")
        row %= self.num_rows
        begin, end = self._row_splits[row : row + 2].tolist()
        return self._values[begin:end]

    def __repr__(self) -> str:
        parts: tuple[object, object] = (self._values, self._row_splits)
        if not all(isinstance(part, Tensor | Ragged) for part in parts):  # a mapped pytree may hold anything
            return f"Ragged(values={parts[0]!r}, row_splits={parts[1]!r})"
        place = "" if self.device.type == "cpu" else f", device='{self.device}'"
        # Subclasses of Tensor may stand for numbers that do not exist yet, as those do with which torch traces a graph.
        readable = type(self._row_splits) is Tensor and not self._row_splits.is_meta
        if not readable or max(self.num_rows, self.flat_values.numel()) > MAX_SHOWN:
            return f"Ragged({self.num_rows} rows, {_num_values(self._values)} values, dtype={self.dtype}{place})"
        return f"Ragged({text_of(self.to_lists())}, dtype={self.dtype}{place})"

    def __getstate__(self) -> tuple[Values, Tensor]:
        return self._values, self._row_splits

    def __setstate__(self, state: tuple[Values, Tensor]) -> None:
        self._values, self._row_splits = state
        self._row_ids = None

    def _places(self) -> Tensor:
        """Returns int64 [n]: the place of each value in its row."""
        starts = self._row_splits[:-1].index_select(0, self.value_rowids())
        return torch.arange(starts.shape[0], device=starts.device) - starts


def fused_value_rowids(rt: Ragged) -> Tensor:
    """Returns the row number of each value, int64 [n]; the same tensor at every call.

    Raises:
        ValueError: `rt` is no `Ragged`.
    """
    if not isinstance(rt, Ragged):
        raise ValueError("rt must be RaggedTensor")  # noqa: TRY004 - the specification's class and text
    return rt.value_rowids()


def _num_values(values: Values) -> int:
    """Returns n, after checking that `values` can be cut into rows."""
    if isinstance(values, Ragged):
        return values.num_rows
    if not isinstance(values, Tensor):
        raise TypeError(f"values must be a tensor or a Ragged, got {type(values).__name__}; see Ragged.from_lists")
    if values.ndim == 0:
        raise ValueError("values must have at least one dim, got a scalar")
    return values.shape[0]


def _splits_of(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _row_ids(ragged: Ragged) -> Tensor:
    return torch.repeat_interleave(ragged.lengths(), output_size=_num_values(ragged.values))


def _take(ragged: Ragged, rows: Tensor) -> Ragged:
    """Returns the rows of these numbers, int64 and in range."""
    lengths = ragged.lengths().index_select(0, rows)
    splits = _splits_of(lengths)
    num_values = int(splits[-1])
    shifts = ragged.row_splits[:-1].index_select(0, rows) - splits[:-1]
    places = torch.arange(num_values, device=rows.device)
    places += torch.repeat_interleave(shifts, lengths, output_size=num_values)
    values = ragged.values
    taken = _take(values, places) if isinstance(values, Ragged) else values.index_select(0, places)
    return Ragged(taken, splits, validate=False)


def _flatten(ragged: Ragged) -> tuple[list[Any], None]:
    return [ragged.values, ragged.row_splits], None


def _flatten_with_keys(ragged: Ragged) -> tuple[list[tuple[Any, Any]], None]:
    keys = (pytree.GetAttrKey("values"), pytree.GetAttrKey("row_splits"))
    return list(zip(keys, _flatten(ragged)[0], strict=True)), None


def _unflatten(parts: Iterable[Any], _: None) -> Ragged:
    values, row_splits = parts
    return Ragged(values, row_splits, validate=False)


# A pytree of its two parts: a tree of batches can be mapped, moved, exported and passed to compiled functions.
pytree.register_pytree_node(
    Ragged,
    _flatten,
    _unflatten,
    serialized_type_name="monolith.tensors.Ragged",
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([Ragged])
