"""What waits to be written: bounded, so that a writer that is slow or stuck costs records and nothing else."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["WaitingItems"]

T = TypeVar("T")


class WaitingItems(Generic[T]):
    """Items on their way to one taker. Any thread may `offer`, and never waits for more than the lock.

    Args:
        most_bytes: Of what waits and of what was taken last, together.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._waiting_bytes = self._taken_bytes = 0
        self._is_closed = False

    def offer(self, item: T, size_bytes: int) -> bool:
        """Whether there was room; a single item larger than all room is never taken."""
        with self._changed:
            held = self._waiting_bytes + self._taken_bytes
            if self._is_closed or held + size_bytes > self._most_bytes:
                return False
            self._items.append(item)
            self._waiting_bytes += size_bytes
            self._changed.notify()
            return True

    def take(self, seconds: float) -> list[T] | None:
        """All that waits, and what was taken before is done with; empty after that time, None at the end."""
        with self._changed:
            self._taken_bytes = 0
            self._changed.wait_for(lambda: self._items or self._is_closed, seconds)
            taken = list(self._items)
            self._items.clear()
            self._taken_bytes, self._waiting_bytes = self._waiting_bytes, 0
            return None if self._is_closed and not taken else taken

    def close(self) -> None:
        """Takes nothing in any more; what waits can still be taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def drop(self) -> list[T]:
        """What still waits, which nobody will take."""
        with self._changed:
            dropped = list(self._items)
            self._items.clear()
            self._waiting_bytes = 0
            return dropped
