"""A batch's columns as an operator needs them, with errors that name the operator and the available columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from monolith.tensors import Ragged

if TYPE_CHECKING:
    from monolith.data.batch import Batch, ColumnValues

__all__ = ["column_of", "describe_column", "ids_of", "labels_of", "numbers_of", "texts_of", "weights_of"]


def column_of(batch: Batch, name: str, owner: object) -> ColumnValues:
    """Returns the column of this name.

    Raises:
        ValueError: there is none; lists the available ones.
    """
    if name not in batch:
        there = ", ".join(batch) or "none"
        raise ValueError(f"{_name_of(owner)}: batch has no column {name!r}; it has {there}")
    return batch[name]


def ids_of(batch: Batch, name: str, owner: object) -> Ragged:
    """Returns a column of rows of int64: ids, actions, or lists of integers.

    Raises:
        ValueError: there is no such column.
        TypeError: it is of another kind.
    """
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
    """Labels [B, W] of at least `width` tasks; a column [B] is that of one task."""
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
