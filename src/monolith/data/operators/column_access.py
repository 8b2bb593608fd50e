"""A batch's columns as an operator needs them, with errors that name the operator and the available columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from monolith.data.batch import Batch, ColumnValues


def column_of(batch: Batch, name: str, owner: object) -> ColumnValues:
    """Returns the column of this name; without one, a ValueError lists the available ones."""
    if name not in batch:
        there = ", ".join(batch) or "none"
        raise ValueError(f"{_name_of(owner)}: batch has no column {name!r}; it has {there}")
    return batch[name]


def ids_of(batch: Batch, name: str, owner: object) -> Ragged:
    """Returns a column of rows of int64: ids, actions, or lists of integers."""
    values = column_of(batch, name, owner)
    if not isinstance(values, Ragged) or values.dtype != torch.int64 or values.ndim != 2:
        raise _wrong_kind(owner, name, "a Ragged of int64", values)
    return values


def numbers_of(batch: Batch, name: str, owner: object) -> Tensor:
    """Returns a column of one number for each row, [B]; [B, 1] counts too."""
    values = column_of(batch, name, owner)
    if isinstance(values, Tensor) and values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if not isinstance(values, Tensor) or values.ndim != 1:
        raise _wrong_kind(owner, name, "a tensor of one number for each row", values)
    return values


def texts_of(batch: Batch, name: str, owner: object) -> list[bytes]:
    """Returns a column of byte strings."""
    values = column_of(batch, name, owner)
    if not isinstance(values, list):
        raise _wrong_kind(owner, name, "a list of bytes", values)
    return values


def labels_of(batch: Batch, name: str, owner: object, *, width: int = 1) -> Tensor:
    """Returns labels [B, W] of at least `width` tasks; a column [B] is that of one task."""
    values = column_of(batch, name, owner)
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.ndim not in {1, 2}:
        raise _wrong_kind(owner, name, "a floating-point tensor [rows, tasks]", values)
    labels = values[:, None] if values.ndim == 1 else values
    if labels.shape[1] < width:
        raise ValueError(f"{_name_of(owner)}: column {name!r} must have {width} labels or more, got {labels.shape[1]}")
    return labels


def weights_of(batch: Batch, name: str) -> Tensor:
    """Returns the column of weights or rates, float [B]; ones where the batch has none."""
    if name in batch:
        return numbers_of(batch, name, "weights")
    return torch.ones(batch.num_rows)


def describe_column(values: ColumnValues) -> str:
    """Describes a column, for messages."""
    if isinstance(values, list):
        return "a list of bytes"
    if isinstance(values, Ragged):
        return f"a Ragged of {values.dtype} with {values.ndim} dims"
    return f"a tensor of {values.dtype} {list(values.shape)}"


def _wrong_kind(owner: object, name: str, expected: str, got: ColumnValues) -> TypeError:
    return TypeError(f"{_name_of(owner)}: column {name!r} must be {expected}, got {describe_column(got)}")


def _name_of(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


_PRIME = np.uint64(0x100000001B3)
_OFFSET = np.uint64(0xCBF29CE484222325)


class PackedTexts:
    """The bytes of many texts, where each starts, and how long it is."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.lengths: npt.NDArray[np.int64] = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        self.ends: npt.NDArray[np.int64] = np.cumsum(self.lengths)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(b"".join(texts), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.lengths)

    def start_with(self, prefix: bytes) -> npt.NDArray[np.bool_]:
        """Returns which strings start with these bytes."""
        return self._have(prefix, self.ends - self.lengths)

    def end_with(self, suffix: bytes) -> npt.NDArray[np.bool_]:
        """Returns which strings end with these bytes."""
        return self._have(suffix, self.ends - len(suffix))

    def hashes(self) -> npt.NDArray[np.int64]:
        """Returns a 64-bit hash of each string (FNV-1a, then its length); equal for equal strings, on every machine."""
        hashes = np.full(len(self), _OFFSET, dtype=np.uint64)
        # Texts in order of length, longest first: those that still have a byte at a place are the first ones.
        order = np.argsort(-self.lengths, kind="stable")
        starts, lengths = (self.ends - self.lengths)[order], self.lengths[order]
        ordered = hashes[order]
        for place in range(int(lengths[0]) if len(lengths) else 0):
            count = int(np.searchsorted(-lengths, -place, side="left"))
            ordered[:count] = (ordered[:count] ^ self.bytes[starts[:count] + place]) * _PRIME
        hashes[order] = ordered ^ lengths.astype(np.uint64)
        return hashes.view(np.int64)

    def _have(self, part: bytes, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        matches = self.lengths >= len(part)
        if part:
            places = starts[matches, None] + np.arange(len(part))
            matches[matches] = (self.bytes[places] == np.frombuffer(part, dtype=np.uint8)).all(axis=1)
        return matches


def rows_with_any(rows: Ragged, values: Tensor) -> Tensor:
    """Returns which rows contain one of the values; bool [B]. `values` is sorted and without duplicates."""
    has_value = torch.zeros(rows.num_rows, dtype=torch.bool, device=rows.device)
    matches = places_in(values, rows.flat_values) >= 0
    has_value[rows.value_rowids()[matches]] = True
    return has_value


def rows_with_all(columns: list[Ragged], values: Tensor) -> Tensor:
    """Returns which rows contain every one of the values, in one of the columns or another; bool [B]."""
    count = len(values)
    pairs = []
    for rows in columns:
        places = places_in(values, rows.flat_values)
        pairs.append((rows.value_rowids() * count + places)[places >= 0])
    distinct = torch.unique(torch.cat(pairs))
    return torch.bincount(distinct // max(count, 1), minlength=columns[0].num_rows) == count


def top_ranks(rows: Ragged, priority: Tensor) -> Tensor:
    """Returns the rank of each row's first value by priority, int64 [B]; ``len(priority)`` if it has none."""
    ordered, order = torch.sort(priority)
    places = places_in(ordered, rows.flat_values)
    matched = places >= 0
    ranks = torch.full((rows.num_rows,), len(priority), dtype=torch.int64, device=rows.device)
    found = order.to(rows.device)[places[matched]]
    return ranks.scatter_reduce_(0, rows.value_rowids()[matched], found, "amin", include_self=True)


def places_in(ordered: Tensor, values: Tensor) -> Tensor:
    """Returns the index of each value in the sorted tensor, -1 if it is missing."""
    if len(ordered) == 0:
        return torch.full_like(values, -1)
    ordered = ordered.to(values.device)
    places = torch.searchsorted(ordered, values.contiguous()).clamp_(max=len(ordered) - 1)
    return torch.where(ordered[places] == values, places, -1)
