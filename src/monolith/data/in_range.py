"""`InRange`: drops and counts samples with a wrong value, like records that cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.data.records.bad_records import BadRecords
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from monolith.data.batch import Batch

__all__ = ["InRange"]


class InRange:
    """For `Dataset.filter`: the rows of a batch whose values in one column are all in ``low <= value < high``.

    The others are bad records, handled by `BadRecords`. Its default raises for the first one.

    >>> from monolith.data import BadRecords, Batch
    >>> bad = BadRecords(limit=10)
    >>> is_good = InRange("req_time", 0, 2**32, bad=bad, named_by="user")
    >>> times, users = torch.tensor([1_700_000_000, 1_700_000_000_000]), torch.tensor([7, 8])
    >>> is_good(Batch({"req_time": times, "user": users}, num_rows=2))
    tensor([ True, False])
    >>> bad.first
    ("column 'req_time': row 1 of a batch must be in [0, 4294967296), got 1700000000000 (user 8)",)

    Args:
        column: A tensor or `Ragged` column of numbers.
        low: The smallest valid value.
        high: The upper bound of valid values, exclusive.
        bad: Counts the rows that are dropped.
        named_by: A column whose value identifies a bad sample in messages.
    """

    def __init__(
        self, column: str, low: float, high: float, *, bad: BadRecords | None = None, named_by: str | None = None
    ) -> None:
        if not low < high:
            raise ValueError(f"InRange: low must be below high, got {low} and {high}")
        self._column = column
        self._low = low
        self._high = high
        self._bad = BadRecords() if bad is None else bad
        self._named_by = named_by

    def __call__(self, batch: Batch) -> Tensor:
        """Returns a bool tensor [rows]: true where a row is valid.

        Raises:
            DataLossError: more rows are bad than may be dropped.
        """
        values = batch[self._column]
        if not isinstance(values, Tensor | Ragged):
            raise TypeError(f"column {self._column!r}: expected numbers, got {type(values).__name__}")
        is_good = torch.ones(batch.num_rows, dtype=torch.bool)
        flat = values.flat_values if isinstance(values, Ragged) else values
        is_wrong = ~((flat >= self._low) & (flat < self._high))  # NaN is, too
        if not is_wrong.any():
            return is_good
        for row in self._rows_of(values, is_wrong):
            self._bad.add(self._text(batch, row))
            is_good[row] = False
        return is_good

    def _rows_of(self, values: Tensor | Ragged, is_wrong: Tensor) -> list[int]:
        if isinstance(values, Tensor):
            return is_wrong.reshape(len(values), -1).any(1).nonzero().view(-1).tolist()
        splits = values.row_splits
        found = torch.searchsorted(splits, is_wrong.nonzero().view(-1), right=True) - 1
        return sorted(set(found.tolist()))

    def _text(self, batch: Batch, row: int) -> str:
        got = _plain(batch[self._column][row])
        name = "" if self._named_by is None else f" ({self._named_by} {_plain(batch[self._named_by][row])})"
        return f"column {self._column!r}: row {row} of a batch must be in [{self._low}, {self._high}), got {got}{name}"


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value
