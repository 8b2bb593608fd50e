"""Records that cannot be read and samples with a wrong value: raise, or count and skip them up to a limit."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.errors import DataLossError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from monolith.data.batch import Batch

_LOG = logging.getLogger(__name__)
_MOST_KEPT = 16


class BadRecords:
    """Counts skipped records, and raises when they are more than allowed.

    Shared by readers and parsers; thread-safe.

    >>> bad = BadRecords(limit=1)
    >>> bad.add("file 'clicks': offset 12: checksum of a record does not match")
    >>> bad.count
    1

    Args:
        limit: Number of records that may be skipped; 0 raises for the first one.
    """

    def __init__(self, limit: int = 0) -> None:
        if limit < 0:
            raise ValueError(f"limit of bad records must be >= 0, got {limit}")
        self.limit = limit
        self._lock = threading.Lock()
        self.count = 0
        """Number of records skipped so far."""
        self._first: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for another process, without the lock. The copy counts independently."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._first = list(self._first)
        self._lock = threading.Lock()

    @property
    def first(self) -> tuple[str, ...]:
        """Place and reason of the first few bad records."""
        return tuple(self._first)

    def add(self, text: str, records: int = 1) -> None:
        """Counts bad records; `text` gives place and reason.

        Raises:
            DataLossError: these are more than may be skipped.
        """
        with self._lock:
            self.count += records
            count = self.count
            is_kept = len(self._first) < _MOST_KEPT
            if is_kept:
                self._first.append(text)
        if count > self.limit:
            allowed = f" ({count} bad records, limit is {self.limit})" if self.limit else ""
            raise DataLossError(f"{text}{allowed}")
        # Later ones are logged less and less often, so that a bad file does not fill a disk with messages.
        if is_kept or count & (count - 1) == 0:
            _LOG.warning("skipped a bad record (%d of at most %d): %s", count, self.limit, text)


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
        rows = torch.searchsorted(values.row_splits, is_wrong.nonzero().view(-1), right=True) - 1
        return sorted(set(rows.tolist()))

    def _text(self, batch: Batch, row: int) -> str:
        got = _plain(batch[self._column][row])
        name = "" if self._named_by is None else f" ({self._named_by} {_plain(batch[self._named_by][row])})"
        return f"column {self._column!r}: row {row} of a batch must be in [{self._low}, {self._high}), got {got}{name}"


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value
