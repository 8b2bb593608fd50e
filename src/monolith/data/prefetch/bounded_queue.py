"""A bounded queue between threads that ends, fails and can be cancelled; queues of one gate can move together."""

from __future__ import annotations

from typing import Generic, TypeVar

from monolith.data.prefetch.gate import Gate, Lane

__all__ = ["BoundedQueue"]

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """Items from any number of producers to any number of consumers, first in, first out.

    Every method may be called from any thread of the process that made the queue.

    Args:
        capacity: Maximum number of queued items; a producer with one more waits.
        name: Name in messages and of threads.
        gate: Shared by queues that move together; default: its own.
        lane: A lane of that gate, with its capacity; default: its own.

    >>> queue: BoundedQueue[int] = BoundedQueue(2, name="numbers")
    >>> queue.put(7)
    >>> queue.close()
    >>> queue.get()
    7
    >>> queue.get()
    Traceback (most recent call last):
    monolith.errors.OutOfRangeError: queue 'numbers' is closed and has no items left
    """

    def __init__(self, capacity: int, *, name: str, gate: Gate | None = None, lane: Lane | None = None) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int):
            raise TypeError(f"queue {name!r}: capacity must be an integer, got {capacity!r}")
        if capacity < 1:
            raise ValueError(f"queue {name!r}: capacity must be at least 1, got {capacity}")
        self._name = name
        self.gate = Gate(name) if gate is None else gate
        """The lock that it waits at."""
        self.lane = Lane(capacity) if lane is None else lane
        """Lane with its items."""

    @property
    def name(self) -> str:
        """Name in messages and of threads."""
        return self._name

    @property
    def capacity(self) -> int:
        """Items that wait at most."""
        return self.lane.capacity

    @property
    def closed(self) -> bool:
        """Whether `put` is refused."""
        return self.gate.closed

    def size(self) -> int:
        """Items that wait now."""
        return len(self.lane.items)

    def put(self, item: T, timeout_seconds: float | None = None) -> None:
        """Adds an item, waiting for room if need be. Raises as `Gate.put` does."""
        self.gate.put((self.lane,), (item,), timeout_seconds)

    def get(self, timeout_seconds: float | None = None) -> T:
        """Returns the next item, waited for if need be. Raises as `Gate.get` does."""
        item: T
        (item,) = self.gate.get((self.lane,), timeout_seconds)
        return item

    def close(self, *, cancel_pending_enqueues: bool = False) -> None:
        """Refuses further items; queued items can still be taken. Idempotent.

        Args:
            cancel_pending_enqueues: Whether a `put` that waits for capacity is cancelled, too; otherwise it completes
                when there is capacity.
        """
        self.gate.close(cancel_pending=cancel_pending_enqueues)

    def fail(self, error: BaseException) -> None:
        """Closes the queue, cancels puts that wait, and has `get` raise `error` after the items that are left."""
        self.gate.fail(error)

    def reopen(self) -> None:
        """Accepts items again after `close` or `fail`; keeps queued items, and clears the error."""
        self.gate.reopen()

    def clear(self) -> None:
        """Drops the items that wait, such as those of a source that was set back."""
        self.gate.clear((self.lane,))

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"{type(self).__name__}({self._name!r}, {self.size()} of {self.capacity} items, {state})"
