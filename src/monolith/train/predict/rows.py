"""Predictions and columns of their batch, as plain columns that every file format supports."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

__all__ = ["PREDICTION", "Column", "PredictionColumns"]

PREDICTION = "prediction"
"""Name of the column of a task's only prediction."""

Column: TypeAlias = "np.ndarray[Any, Any] | list[Any]"
"""One entry a row: an array [rows] or [rows, k], or a list of texts, of lists, or of numbers and None."""


class PredictionColumns:
    """Makes the columns of a file from batches and their predictions.

    Args:
        keys: Columns of the batch to write next to the predictions, in this order.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        repeated = sorted({key for key in keys if list(keys).count(key) > 1})
        if repeated:
            raise InvalidArgumentError(f"key columns must differ, got {repeated[0]!r} more than once")
        self._keys = tuple(keys)
        self._single: set[str] = set()
        """Ragged columns that had one value in each row of the first batch."""
        self._names: list[str] | None = None

    def of(self, batch: Any, predictions: Any) -> dict[str, Column]:
        """Returns name -> column; the same names for every batch.

        Raises:
            InvalidArgumentError: the batch lacks a key, or predictions do not have one value for each row.
        """
        columns = {key: self._key_column(key, batch) for key in self._keys}
        made = _prediction_columns(predictions)
        clashes = sorted(columns.keys() & made.keys())
        if clashes:
            raise InvalidArgumentError(
                f"key column {clashes[0]!r}: a prediction has this name, too; leave the key out or rename that"
            )
        columns |= made
        sizes = {name: len(column) for name, column in columns.items()}
        if len(set(sizes.values())) > 1:
            raise InvalidArgumentError(f"predictions must be one for each row of the batch, got {sizes}")
        if self._names is None:
            self._names = list(columns)
        elif self._names != list(columns):
            raise InvalidArgumentError(
                f"predictions must have the same names for every batch, got {list(columns)} after {self._names}"
            )
        return columns

    def _key_column(self, key: str, batch: Any) -> Column:
        if not isinstance(batch, Mapping) or key not in batch:
            names = list(map(str, batch)) if isinstance(batch, Mapping) else []
            close = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names) or 'no columns'}"
            raise InvalidArgumentError(f"key column {key!r}: the batch has no such column; {hint}")
        values = batch[key]
        if isinstance(values, Ragged):
            return self._ragged_column(key, values)
        if isinstance(values, Tensor | np.ndarray):
            return _array(values, f"key column {key!r}")
        return [value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value for value in values]

    def _ragged_column(self, key: str, values: Ragged) -> Column:
        rows = values.to_lists()
        if self._names is None and all(len(row) == 1 for row in rows):
            self._single.add(key)
        if key not in self._single:
            return rows
        longer = next((row for row in rows if len(row) > 1), None)
        if longer is not None:
            raise InvalidArgumentError(
                f"key column {key!r}: it had one value in each row so far, got {longer}; choose a key with one value"
            )
        return [row[0] if row else None for row in rows]


def _prediction_columns(predictions: Any) -> dict[str, Column]:
    if isinstance(predictions, Mapping):
        named = {str(name): values for name, values in predictions.items()}
    elif isinstance(predictions, list | tuple):
        named = {f"{PREDICTION}_{place}": values for place, values in enumerate(predictions)}
    else:
        named = {PREDICTION: predictions}
    for name, values in named.items():
        if not isinstance(values, Tensor | np.ndarray):
            raise InvalidArgumentError(
                f"prediction {name!r}: a tensor is needed, got {type(values).__name__}; let model_fn return"
                " Spec(predictions=...) in mode 'predict'"
            )
    return {name: _array(values, f"prediction {name!r}") for name, values in named.items()}


def _array(values: Tensor | np.ndarray[Any, Any], subject: str) -> np.ndarray[Any, Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in {1, 2}:
        raise InvalidArgumentError(f"{subject}: one or several numbers a row are needed, got {list(values.shape)}")
    return values
