"""Synchronization of producers and consumers: one lock over lanes of items that move together.

A gate is open, then closed: by its producers at the end of the data, by its consumer to stop, or by an error.

    open       `put` waits for capacity, `get` waits for items closed     `put` is refused; `get` returns what is left,
    then raises OutOfRangeError, or the producer's error reopened   open again, with what was left

`put` and `get` atomically move one item on each of the given lanes: any number of producers and consumers always see
items that belong together. Every method may be called from any thread of the process that made the gate.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from monolith.errors import CancelledError, DeadlineExceededError, FailedPreconditionError, OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

__all__ = ["Gate", "Lane"]


class Lane:
    """The items of one queue; belongs to a gate, whose lock protects it."""

    __slots__ = ("capacity", "items")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: deque[Any] = deque()


class _WaitingPut:
    """Items that wait for capacity; the thread that frees capacity adds them, and wakes the waiting thread."""

    __slots__ = ("is_done", "items", "lanes")

    def __init__(self, lanes: Sequence[Lane], items: Sequence[Any]) -> None:
        self.lanes = lanes
        self.items = items
        self.is_done = False


class Gate:
    """The lock of lanes that move together, and their end state.

    Args:
        name: Name in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._owner = os.getpid()
        lock = threading.RLock()  # its conditions are faster than those of a Lock
        self._not_full = threading.Condition(lock)
        self._not_empty = threading.Condition(lock)
        # State below is protected by the lock.
        self._closed = False
        self._cancelled = False
        self._waiting_puts: list[_WaitingPut] = []
        self._num_waiting_gets = 0
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None

    @property
    def closed(self) -> bool:
        """Whether `put` is refused."""
        return self._closed

    def put(self, lanes: Sequence[Lane], items: Sequence[Any], timeout_seconds: float | None = None) -> None:
        """Adds one item to each lane, once all have room; lanes for which there is no item are given None.

        Raises:
            CancelledError: the gate is closed.
            DeadlineExceededError: no room within the time given; nothing was added.
        """
        self._require_owner()
        with self._not_full:
            if self._closed:
                raise CancelledError(f"queue {self._name!r} is closed")
            if _have_room(lanes):
                self._add(lanes, items)
            else:
                self._wait_for_room(_WaitingPut(lanes, items), timeout_seconds)

    def get(self, lanes: Sequence[Lane], timeout_seconds: float | None = None) -> list[Any]:
        """Returns the next item of each lane, once all have one.

        Raises:
            OutOfRangeError: the gate is closed and the lanes are empty.
            DeadlineExceededError: no items within the time given.
            BaseException: what `fail` was given, once the items before it are taken.
        """
        self._require_owner()
        with self._not_empty:
            if not _have_items(lanes):
                self._wait_for_items(lanes, timeout_seconds)
            items = [lane.items.popleft() for lane in lanes]
            if self._waiting_puts:
                self._admit()
            return items

    def close(self, *, cancel_pending: bool = False) -> None:
        """Refuses further items; queued items can still be taken. Idempotent.

        Args:
            cancel_pending: Whether a `put` that waits for capacity is cancelled, too; otherwise it completes when there
                is capacity.
        """
        self._require_owner()
        with self._not_empty:
            self._close(cancel_pending)

    def fail(self, error: BaseException) -> None:
        """Closes, cancels puts that wait, and has `get` raise `error` after the items that are left.

        The first error counts, also when the gate was closed before it.
        """
        self._require_owner()
        with self._not_empty:
            if self._error is None:
                self._error, self._traceback = error, error.__traceback__
            self._close(cancel_pending=True)

    def reopen(self) -> None:
        """Accepts items again after `close` or `fail`; keeps queued items, and clears the error."""
        self._require_owner()
        with self._not_empty:
            self._closed = self._cancelled = False
            self._error = self._traceback = None

    def clear(self, lanes: Sequence[Lane]) -> None:
        """Drops the items that wait."""
        self._require_owner()
        with self._not_empty:
            for lane in lanes:
                lane.items.clear()
            self._admit()

    def add_lane(self, lanes: list[Lane]) -> None:
        """Adds a lane to a list of lanes, in step with them: for each item that they have, it has None.

        Threads that wait for the list see the new lane when they wake up.
        """
        self._require_owner()
        with self._not_empty:
            lane = Lane(lanes[0].capacity)
            lane.items.extend([None] * len(lanes[0].items))
            lanes.append(lane)

    def _close(self, cancel_pending: bool) -> None:
        self._closed = True
        self._cancelled = self._cancelled or cancel_pending
        # Waiting threads check again; notify_all, because a woken thread that is interrupted would wake no other.
        self._not_empty.notify_all()
        self._not_full.notify_all()

    def _add(self, lanes: Sequence[Lane], items: Sequence[Any]) -> None:
        # Not fewer lanes than items, but maybe more: one may have been added while these waited.
        for lane, item in zip_longest(lanes, items):
            lane.items.append(item)
        if self._num_waiting_gets:
            self._not_empty.notify_all()

    def _admit(self) -> None:
        """Adds items that wait for capacity, first come, first served.

        Done here and not by the waiting threads, so that the next `get` finds the items without waiting for a thread.
        """
        if self._cancelled:
            return
        for put in tuple(self._waiting_puts):
            if _have_room(put.lanes):
                put.is_done = True
                self._waiting_puts.remove(put)
                self._add(put.lanes, put.items)
        self._not_full.notify_all()

    def _wait_for_room(self, put: _WaitingPut, timeout_seconds: float | None) -> None:
        self._waiting_puts.append(put)
        try:
            self._wait(self._not_full, lambda: put.is_done or self._cancelled, timeout_seconds, "full")
        finally:
            if not put.is_done:
                self._waiting_puts.remove(put)
                self._not_empty.notify_all()
        if not put.is_done:
            raise CancelledError(f"queue {self._name!r} was closed while an item waited for room")

    def _wait_for_items(self, lanes: Sequence[Lane], timeout_seconds: float | None) -> None:
        self._num_waiting_gets += 1
        try:
            self._wait(
                self._not_empty,
                lambda: _have_items(lanes) or (self._closed and not self._waiting_puts),
                timeout_seconds,
                "empty",
            )
        finally:
            self._num_waiting_gets -= 1
        if not _have_items(lanes):
            self._raise_end()

    def _wait(
        self, condition: threading.Condition, ready: Callable[[], bool], timeout_seconds: float | None, state: str
    ) -> None:
        start = time.monotonic()
        if not condition.wait_for(ready, timeout_seconds):
            raise DeadlineExceededError(
                f"queue {self._name!r} stayed {state} for {time.monotonic() - start:.3g} s; "
                f"the time-out was {timeout_seconds:g} s"
            )

    def _raise_end(self) -> None:
        if self._error is not None:
            # Without it, every consumer that raises the error would add its own frames to those of the producer.
            raise self._error.with_traceback(self._traceback)
        raise OutOfRangeError(f"queue {self._name!r} is closed and has no items left")

    def _require_owner(self) -> None:
        """Refuses use in a fork, whose copy has no filling thread, and maybe a lock that is never released."""
        if self._owner != os.getpid():
            raise FailedPreconditionError(
                f"queue {self._name!r} was made in process {self._owner} and cannot be used in its fork "
                f"{os.getpid()}; make the queue after the fork"
            )


# Loops instead of all(): they run at every put and get, and a generator costs more than the check.
def _have_room(lanes: Sequence[Lane]) -> bool:
    for lane in lanes:  # noqa: SIM110 - see above
        if len(lane.items) >= lane.capacity:
            return False
    return True


def _have_items(lanes: Sequence[Lane]) -> bool:
    for lane in lanes:  # noqa: SIM110 - see above
        if not lane.items:
            return False
    return True
