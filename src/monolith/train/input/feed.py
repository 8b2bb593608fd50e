"""Batches of an input, each with the position after it; optionally prefetched by a thread."""

from __future__ import annotations

import contextvars
import logging
from typing import TYPE_CHECKING, Any

from monolith.data import Dataset, Reading
from monolith.data.prefetch import BoundedQueue, MultiQueueRunner
from monolith.errors import CancelledError, DeadlineExceededError, OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from monolith.nn import BatchContext

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 10.0
"""Seconds to wait for the thread to return from its source; a live stream without traffic may never return."""


class BatchFeed:
    """The batches of one input in order. Only the training thread may use it.

    Args:
        source: A `Dataset`, or anything that can be iterated.
        position: Where to resume; None: from the beginning.
        make_context: Called with each batch and its position, in the reading thread.
        ahead: Number of batches to prefetch; 0: none, and no thread.
        when_empty: Called by the reading thread if there is no batch although it started at the beginning.
    """

    def __init__(
        self,
        source: Dataset[Any] | Iterable[Any],
        *,
        position: bytes | None,
        make_context: Callable[[Any, bytes | None], BatchContext],
        ahead: int = 0,
        when_empty: Callable[[], None] = lambda: None,
    ) -> None:
        self._make_context = make_context
        self._when_empty: Callable[[], None] | None = when_empty if position is None else None
        """Until the first batch, or the end."""
        self._reading: Reading[Any] | None = None
        if isinstance(source, Dataset):
            self._reading = source.read(position)
            self._batches: Iterator[Any] = self._reading
        else:
            self._batches = iter(source)
        self._next: BatchContext | None = None
        """Waited for, and not taken yet."""
        self._queue: BoundedQueue[BatchContext] | None = None
        self._runner: MultiQueueRunner | None = None
        if ahead > 0:
            queue: BoundedQueue[BatchContext] = BoundedQueue(ahead, name="session/input")
            run = contextvars.copy_context().run
            self._queue = queue
            self._runner = MultiQueueRunner(queue, [lambda: run(self._fill, queue)], side_streams=False)
            self._runner.start()

    def take(self) -> BatchContext:
        """Returns the next batch.

        Raises:
            OutOfRangeError: the input has ended.
            BaseException: what the input raised, after the batches before the error.
        """
        if self._next is None:
            return self._read()
        batch, self._next = self._next, None
        return batch

    def wait(self) -> None:
        """Waits until the next batch is available. Raises as `take` does."""
        if self._next is None:
            self._next = self._read()

    def take_if_there(self) -> BatchContext | None:
        """Returns the next batch if it is ready, else None. Raises as `take` does."""
        if self._next is not None:
            return self.take()
        if self._queue is None:
            return None
        try:
            return self._queue.get(timeout_seconds=0)
        except DeadlineExceededError:
            return None

    def close(self) -> None:
        """Ends the thread and gives the input back. Further calls do nothing."""
        runner, self._runner = self._runner, None
        if runner is not None and self._queue is not None:
            try:
                runner.stop(_JOIN_SECONDS)
            except DeadlineExceededError:
                _log.warning(
                    "input: the reader thread did not return from the source within %g s; it is abandoned",
                    _JOIN_SECONDS,
                )
                return
            finally:
                self._queue.clear()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()

    def _read(self) -> BatchContext:
        return self._make() if self._queue is None else self._queue.get()

    def _fill(self, queue: BoundedQueue[BatchContext]) -> None:
        queue.put(self._make())

    def _make(self) -> BatchContext:
        try:
            batch = next(self._batches)
        except StopIteration:
            tell, self._when_empty = self._when_empty, None
            if tell is not None:
                tell()
            raise OutOfRangeError("the input has no more batches") from None
        self._when_empty = None
        if self._queue is not None and self._queue.closed:  # abandoned by `close`; another feed numbers the batches now
            raise CancelledError("the input was closed while it waited for a batch")
        position = None if self._reading is None else self._reading.position
        return self._make_context(batch, position)
