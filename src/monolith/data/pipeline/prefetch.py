"""`Dataset.prefetch`: elements made ahead of their use, in a thread; the position of each travels with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith.data.pipeline.counts import KnownLength, whole_number
from monolith.data.pipeline.stage import Stage, StageSource
from monolith.data.prefetch.bounded_queue import BoundedQueue
from monolith.data.prefetch.runner import MultiQueueRunner
from monolith.data.reading import Reading
from monolith.errors import OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

__all__ = ["Prefetch"]


class Prefetch(Stage[T, T]):
    """Keeps up to `capacity` elements ready; one more is being made. 0 reads without a thread.

    An error in the thread is raised in the caller after the elements that were made before it.
    """

    works_on_shares = True

    def __init__(self, capacity: int, *, name: str = "prefetch") -> None:
        self._capacity = whole_number("prefetch: capacity", capacity, at_least=0)
        self._name = name

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading whose position is that of the source after the returned element, not after queued ones."""
        reading = source.read(position)
        return _PrefetchReading(reading, self._capacity, self._name) if self._capacity else reading

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the length of the source."""
        return source

    def __repr__(self) -> str:
        return f"prefetch({self._capacity})"


class _PrefetchReading(Reading[T]):
    def __init__(self, source: Reading[T], capacity: int, name: str) -> None:
        self._source = source
        self._position = source.position
        self._queue: BoundedQueue[tuple[T, bytes]] = BoundedQueue(capacity, name=name)
        self._runner = MultiQueueRunner(self._queue, [_mover(source, self._queue)])
        self._is_closed = False
        self._runner.start()

    @property
    def position(self) -> bytes:
        return self._position

    def __next__(self) -> T:
        if self._is_closed:
            raise StopIteration
        try:
            element, self._position = self._queue.get()
        except OutOfRangeError:
            raise StopIteration from None
        return element

    def close(self) -> None:
        """Ends the thread, when it has made the element that it is at, and closes the source."""
        if not self._is_closed:
            self._is_closed = True
            self._runner.stop()
            self._queue.clear()
            self._source.close()


def _mover(source: Reading[T], queue: BoundedQueue[tuple[T, bytes]]) -> Callable[[], None]:
    """Returns a call that moves one element to the queue, without a reference to the reading."""

    def move() -> None:
        element = next(source)
        queue.put((element, source.position))

    return move
