"""A bounded queue between threads that ends, fails and can be cancelled.

A queue is open, then closed: by its producers at the end of the data, by its consumer to stop, or by an error.

    open       `put` waits for capacity, `get` waits for an item
    closed     `put` is refused; `get` returns what is left, then raises OutOfRangeError, or the producer's error
    reopened   open again, with what was left
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from monolith.errors import CancelledError, DeadlineExceededError, FailedPreconditionError, OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

T = TypeVar("T")


class _WaitingPut(Generic[T]):
    """An item that waits for capacity; the thread that frees capacity adds it, and wakes the waiting thread."""

    __slots__ = ("is_added", "item")

    def __init__(self, item: T) -> None:
        self.item = item
        self.is_added: bool | None = None
        """False: it was cancelled; None: it waits."""


class BoundedQueue(Generic[T]):
    """Items from any number of producers to any number of consumers, first in, first out.

    Every method may be called from any thread of the process that made the queue.

    Args:
        capacity: Maximum number of queued items; a producer with one more waits.
        name: Name in messages and of threads.

    >>> queue: BoundedQueue[int] = BoundedQueue(2, name="numbers")
    >>> queue.put(7)
    >>> queue.close()
    >>> queue.get()
    7
    >>> queue.get()
    Traceback (most recent call last):
    monolith.errors.OutOfRangeError: queue 'numbers' is closed and has no items left
    """

    def __init__(self, capacity: int, *, name: str) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int):
            raise TypeError(f"queue {name!r}: capacity must be an integer, got {capacity!r}")
        if capacity < 1:
            raise ValueError(f"queue {name!r}: capacity must be at least 1, got {capacity}")
        self.name = name
        self.capacity = capacity
        self._owner = os.getpid()
        self._lock = threading.RLock()  # its conditions are faster than those of a Lock
        self._not_full = threading.Condition(self._lock)
        self._not_empty = threading.Condition(self._lock)
        # State below is protected by the lock.
        self._items: deque[T] = deque()
        self.closed = False
        """Whether `put` is refused."""
        self._waiting_puts: deque[_WaitingPut[T]] = deque()
        self._num_waiting_gets = 0
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None

    def size(self) -> int:
        """Items that wait now."""
        return len(self._items)

    def put(self, item: T, timeout_seconds: float | None = None) -> None:
        """Adds an item, waiting for room if need be.

        Raises:
            CancelledError: the queue is closed.
            DeadlineExceededError: no room within the time given; nothing was added.
        """
        self._require_owner()
        with self._lock:
            if self.closed:
                raise CancelledError(f"queue {self.name!r} is closed")
            if len(self._items) < self.capacity:
                self._add(item)
            else:
                self._wait_for_room(_WaitingPut(item), timeout_seconds)

    def get(self, timeout_seconds: float | None = None) -> T:
        """Returns the next item, waited for if need be.

        Raises:
            OutOfRangeError: the queue is closed and empty.
            DeadlineExceededError: no item within the time given.
            BaseException: what `fail` was given, once the items before it are taken.
        """
        self._require_owner()
        with self._lock:
            if not self._items:
                self._wait_for_item(timeout_seconds)
            item = self._items.popleft()
            if self._waiting_puts:
                self._admit()
            return item

    def close(self, *, cancel_pending_enqueues: bool = False) -> None:
        """Refuses further items; queued items can still be taken. Idempotent.

        Args:
            cancel_pending_enqueues: Whether a `put` that waits for capacity is cancelled, too; otherwise it completes
                when there is capacity.
        """
        self._require_owner()
        with self._lock:
            self.closed = True
            if cancel_pending_enqueues:
                for put in self._waiting_puts:
                    put.is_added = False
                self._waiting_puts.clear()
            # Waiting threads check again; notify_all, because a woken thread that is interrupted would wake no other.
            self._not_empty.notify_all()
            self._not_full.notify_all()

    def fail(self, error: BaseException) -> None:
        """Closes the queue, cancels puts that wait, and has `get` raise `error` after the items that are left.

        The first error counts, also when the queue was closed before it.
        """
        self._require_owner()
        with self._lock:
            if self._error is None:
                self._error, self._traceback = error, error.__traceback__
            self.close(cancel_pending_enqueues=True)

    def reopen(self) -> None:
        """Accepts items again after `close` or `fail`; keeps queued items, and clears the error."""
        self._require_owner()
        with self._lock:
            self.closed = False
            self._error = self._traceback = None

    def clear(self) -> None:
        """Drops the items that wait, such as those of a source that was set back."""
        self._require_owner()
        with self._lock:
            self._items.clear()
            self._admit()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"{type(self).__name__}({self.name!r}, {self.size()} of {self.capacity} items, {state})"

    def _add(self, item: T) -> None:
        self._items.append(item)
        if self._num_waiting_gets:
            self._not_empty.notify_all()

    def _admit(self) -> None:
        """Adds items that wait for capacity, first come, first served.

        Done here and not by the waiting threads, so that the next `get` finds the items without waiting for a thread.
        """
        while self._waiting_puts and len(self._items) < self.capacity:
            put = self._waiting_puts.popleft()
            put.is_added = True
            self._add(put.item)
        self._not_full.notify_all()

    def _wait_for_room(self, put: _WaitingPut[T], timeout_seconds: float | None) -> None:
        self._waiting_puts.append(put)
        try:
            self._wait(self._not_full, lambda: put.is_added is not None, timeout_seconds, "full")
        finally:
            if put.is_added is None:
                self._waiting_puts.remove(put)
                self._not_empty.notify_all()
        if not put.is_added:
            raise CancelledError(f"queue {self.name!r} was closed while an item waited for room")

    def _wait_for_item(self, timeout_seconds: float | None) -> None:
        self._num_waiting_gets += 1
        try:
            self._wait(
                self._not_empty,
                lambda: bool(self._items) or (self.closed and not self._waiting_puts),
                timeout_seconds,
                "empty",
            )
        finally:
            self._num_waiting_gets -= 1
        if self._items:
            return
        if self._error is not None:
            # Without it, every consumer that raises the error would add its own frames to those of the producer.
            raise self._error.with_traceback(self._traceback)
        raise OutOfRangeError(f"queue {self.name!r} is closed and has no items left")

    def _wait(
        self, condition: threading.Condition, ready: Callable[[], bool], timeout_seconds: float | None, state: str
    ) -> None:
        start = time.monotonic()
        if not condition.wait_for(ready, timeout_seconds):
            raise DeadlineExceededError(
                f"queue {self.name!r} stayed {state} for {time.monotonic() - start:.3g} s; "
                f"the time-out was {timeout_seconds:g} s"
            )

    def _require_owner(self) -> None:
        """Refuses use in a fork, whose copy has no filling thread, and maybe a lock that is never released."""
        if self._owner != os.getpid():
            raise FailedPreconditionError(
                f"queue {self.name!r} was made in process {self._owner} and cannot be used in its fork "
                f"{os.getpid()}; make the queue after the fork"
            )
