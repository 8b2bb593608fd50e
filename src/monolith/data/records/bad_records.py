"""Handling of records that cannot be read: raise, or count and skip them up to a limit."""

from __future__ import annotations

import logging
import threading
from typing import Any

from monolith.errors import DataLossError

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
        self._count = 0
        self._first: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for another process, without the lock. The copy counts independently."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._first = list(self._first)
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Number of records skipped so far."""
        return self._count

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
            self._count += records
            count = self._count
            is_kept = len(self._first) < _MOST_KEPT
            if is_kept:
                self._first.append(text)
        if count > self.limit:
            allowed = f" ({count} bad records, limit is {self.limit})" if self.limit else ""
            raise DataLossError(f"{text}{allowed}")
        # Later ones are logged less and less often, so that a bad file does not fill a disk with messages.
        if is_kept or count & (count - 1) == 0:
            _LOG.warning("skipped a bad record (%d of at most %d): %s", count, self.limit, text)
