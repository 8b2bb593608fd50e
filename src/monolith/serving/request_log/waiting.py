"""Bounded queue of items to write: a slow or stuck writer loses records and has no other effect."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["WaitingItems"]

T = TypeVar("T")


class WaitingItems(Generic[T]):
    """Queue with one consumer. Any thread may `offer`; it never blocks except for the lock.

    Args:
        most_bytes: Maximum size of queued items and those taken last, together.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._waiting_bytes = self._taken_bytes = 0
        self._is_closed = False

    def offer(self, item: T, size_bytes: int) -> bool:
        """Adds an item; returns False if it does not fit, or after `close`. An item above the limit never fits."""
        with self._changed:
            held = self._waiting_bytes + self._taken_bytes
            if self._is_closed or held + size_bytes > self._most_bytes:
                return False
            self._items.append(item)
            self._waiting_bytes += size_bytes
            self._changed.notify()
            return True

    def take(self, seconds: float) -> list[T] | None:
        """Returns queued items, and releases those taken before; empty after a timeout, None once closed and empty."""
        with self._changed:
            self._taken_bytes = 0
            self._changed.wait_for(lambda: self._items or self._is_closed, seconds)
            taken = list(self._items)
            self._items.clear()
            self._taken_bytes, self._waiting_bytes = self._waiting_bytes, 0
            return None if self._is_closed and not taken else taken

    def close(self) -> None:
        """Closes the queue to new items; queued ones can still be taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def drop(self) -> list[T]:
        """Removes and returns the items that are still queued."""
        with self._changed:
            dropped = list(self._items)
            self._items.clear()
            self._waiting_bytes = 0
            return dropped
