"""Stages over a pass of the data: `Dataset.repeat`, `cache`, and `prefetch`, which reads ahead in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith.data.pipeline.stage import IndexedReading, KnownLength, Reading, Stage, StageSource, whole_number
from monolith.data.position import SavedPosition, encode_position, nested
from monolith.data.prefetch.bounded_queue import BoundedQueue
from monolith.data.prefetch.runner import MultiQueueRunner
from monolith.errors import InvalidArgumentError, OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


_REPEAT = "repeat"


class Repeat(Stage[T, T]):
    """Repeated passes over the data, finite or endless; none with an empty source.

    Stages that shuffle below it use another order in each pass. The number of passes is not part of a position.
    """

    works_on_shares = True

    def __init__(self, epochs: int | None = None, *, first_epoch: int = 0) -> None:
        self._epochs = None if epochs is None else whole_number("repeat: epochs", epochs, at_least=0)
        self._first_epoch = first_epoch

    def for_epoch(self, epoch: int) -> Repeat[T]:
        """Returns passes whose count continues after those of earlier epochs."""
        return Repeat(self._epochs, first_epoch=epoch * (self._epochs or 0))

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading; its position is the pass, and that of the source in it."""
        if position is None:
            return _RepeatReading(self._pass_of(source), self._epochs, 0, None)
        saved = SavedPosition(position, _REPEAT)
        epoch, start = saved.number("epoch"), saved.optional_position("source")
        return _RepeatReading(self._pass_of(source), self._epochs, epoch, start)

    def _pass_of(self, source: StageSource[T]) -> Callable[[int], StageSource[T]]:
        return lambda epoch: source.for_epoch(self._first_epoch + epoch)

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the length of the source times the number of epochs."""
        if self._epochs is None:
            return KnownLength()
        elements, rows = (None if number is None else number * self._epochs for number in source)
        return KnownLength(elements, rows)

    def __repr__(self) -> str:
        return f"repeat({'' if self._epochs is None else self._epochs})"


class _RepeatReading(Reading[T]):
    def __init__(
        self, pass_of: Callable[[int], StageSource[T]], epochs: int | None, epoch: int, start: bytes | None
    ) -> None:
        self._pass_of = pass_of
        self._epochs = epochs
        self._epoch = epoch
        self._start = start
        """Start position of the pass, until it is opened."""
        self._source: Reading[T] | None = None
        self._is_empty = start is None
        """Whether the pass was read from its start and had no element so far."""
        self._is_done = False
        # Begun here rather than at the first element: a wrong position is the caller's error.
        self._open()

    @property
    def position(self) -> bytes:
        source = self._start if self._source is None else self._source.position
        return encode_position(_REPEAT, {"epoch": self._epoch, "source": None if source is None else nested(source)})

    def __next__(self) -> T:
        while not self._is_done:
            self._open()
            if self._source is None:
                break
            try:
                element = next(self._source)
            except StopIteration:
                self._end_pass()
                continue
            self._is_empty = False
            return element
        raise StopIteration

    def close(self) -> None:
        self._is_done = True
        if self._source is not None:
            self._source.close()

    def _open(self) -> None:
        if self._source is None and (self._epochs is None or self._epoch < self._epochs):
            self._source = self._pass_of(self._epoch).read(self._start)

    def _end_pass(self) -> None:
        if self._source is not None:
            self._source.close()
        if self._is_empty and self._epochs is None:
            self._is_done = True  # nothing to repeat, however often
            return
        self._source, self._start, self._is_empty = None, None, True
        self._epoch += 1


_CACHE = "cache"


class Cache(Stage[T, T]):
    """Holds the elements of the first complete reading; later readings need no source.

    The order is that of the first pass in every epoch, so shuffle after the cache. Elements are shared between readings
    and must not be changed. Memory holds all of them.
    """

    keeps_length = True

    def __init__(self) -> None:
        self._elements: tuple[T, ...] | None = None

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading; its position is the number of returned elements. The source is read once from its start."""
        if self._elements is not None:
            return IndexedReading(_CACHE, self._elements.__getitem__, len(self._elements), position)
        index = 0 if position is None else SavedPosition(position, _CACHE).number("index")
        return _CacheReading(self, source.read(), index)

    def keep(self, elements: list[T]) -> None:
        """Has later readings use these."""
        self._elements = tuple(elements)


class _CacheReading(Reading[T]):
    """Reads the source and remembers it. Does not extend StageReading: its position is a number."""

    def __init__(self, cache: Cache[T], source: Reading[T], index: int) -> None:
        self._cache = cache
        self._source = source
        self._index = index
        self._read: list[T] = []
        self._is_done = False

    @property
    def position(self) -> bytes:
        return encode_position(_CACHE, {"index": self._index})

    def __next__(self) -> T:
        while not self._is_done:
            try:
                self._read.append(next(self._source))
            except StopIteration:
                self._finish()
                break
            if len(self._read) > self._index:
                self._index += 1
                return self._read[-1]
        raise StopIteration

    def close(self) -> None:
        """Closes the source; an incomplete pass is discarded."""
        self._is_done = True
        self._source.close()
        self._read = []

    def _finish(self) -> None:
        if self._index > len(self._read):
            raise InvalidArgumentError(
                f"position for a dataset of kind {_CACHE!r}: it is after {self._index} elements, the source has "
                f"{len(self._read)}; the source is not the one that was read before"
            )
        self._cache.keep(self._read)
        self.close()


class Prefetch(Stage[T, T]):
    """Keeps up to `capacity` elements ready; one more is being made. 0 reads without a thread.

    An error in the thread is raised in the caller after the elements that were made before it.
    """

    works_on_shares = True
    keeps_length = True

    def __init__(self, capacity: int, *, name: str = "prefetch") -> None:
        self._capacity = whole_number("prefetch: capacity", capacity, at_least=0)
        self._name = name

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading whose position is that of the source after the returned element, not after queued ones."""
        reading = source.read(position)
        return _PrefetchReading(reading, self._capacity, self._name) if self._capacity else reading

    def __repr__(self) -> str:
        return f"prefetch({self._capacity})"


class _PrefetchReading(Reading[T]):
    def __init__(self, source: Reading[T], capacity: int, name: str) -> None:
        self._source = source
        self._position = source.position
        self._queue: BoundedQueue[tuple[T, bytes]] = BoundedQueue(capacity, name=name)
        # Elements may be of any type, so that their tensors are not staged: they are made on the consumer's stream.
        self._runner = MultiQueueRunner(self._queue, [_mover(source, self._queue)], side_streams=False)
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
