"""Batches of an input, optionally prefetched by a thread; each with its number, its time and the position after it."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from monolith.data import Dataset, Reading
from monolith.data.prefetch import BoundedQueue, MultiQueueRunner
from monolith.errors import CancelledError, DeadlineExceededError, InvalidArgumentError, OutOfRangeError
from monolith.hooks import REQUEST_TIME
from monolith.nn import BatchContext
from monolith.tables import BatchStamp, bound_times
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from monolith.checkpoint import TrainState
    from monolith.train.device_placement import DevicePlacement

_log = logging.getLogger(__name__)

_TIME_END = 2**32

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
        self._making = threading.Lock()
        """Held while a batch gets its number, so that none of a closed feed takes one."""
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
            with self._making:
                self._queue.close(cancel_pending_enqueues=True)
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
        with self._making:
            if self._queue is not None and self._queue.closed:  # another feed numbers the batches now
                raise CancelledError("the input was closed while it waited for a batch")
            position = None if self._reading is None else self._reading.position
            return self._make_context(batch, position)


class BatchContexts:
    """Makes the contexts of a session's batches, with their numbers, stamps and times; in one thread at a time.

    Args:
        is_training: Whether batches are numbered and their times are bounded.
        is_deterministic: Whether a batch without a time has the time 0, instead of that of its step.
        placement: The device to which features are copied; None: none.
    """

    def __init__(
        self, *, is_training: bool, is_deterministic: bool = False, placement: DevicePlacement | None = None
    ) -> None:
        self._is_training = is_training
        self._is_deterministic = is_deterministic
        self._placement = placement

    def begin(self, state: TrainState, worker: int, *, next_batch: int, newest: int = 0) -> None:
        """Starts the batches of one worker."""
        self._state = state
        self._embeddings = list(state.embeddings.values())
        self._worker = worker
        self._next_batch = next_batch
        self._clock = BatchClock(newest)

    def make(self, batch: Any, position: bytes | None) -> BatchContext:
        """Returns the context of the next batch.

        Args:
            batch: The features.
            position: Position of the input after it; None: the last one, as the input has no positions.
        """
        time = self._clock.time_of(batch) if self._is_training else time_of(batch)
        if time is None and self._is_deterministic:
            time = 0
        if position is None:
            last = self._state.applied.get(self._worker)
            position = b"" if last is None else last.position
        stamp = BatchStamp(
            worker=self._worker, seq=self._next_batch, position=position, event_time_ms=1000 * self._clock.newest
        )
        self._next_batch += self._is_training
        if self._placement is None:
            return BatchContext(batch, time=time, stamp=stamp)
        staged = self._placement.stage(batch, host=[name for module in self._embeddings for name in module.slots])
        return BatchContext(staged.features, time=time, stamp=stamp, begin=staged.receive)

    def make_planned(self, batch: Any, position: bytes | None) -> BatchContext:
        """Returns the context of the next batch, whose rows can be read ahead."""
        batch_context = self.make(batch, position)
        for embeddings in self._embeddings:
            batch_context.plan(embeddings)
        return batch_context


def time_of(batch: Any) -> int | None:
    """Returns the newest request time of a batch, Unix seconds; None if it has no such column.

    >>> import torch
    >>> time_of({"req_time": torch.tensor([1_700_000_000, 1_700_000_060])})
    1700000060
    """
    times = times_of(batch)
    return None if times is None else int(times.max())


class BatchClock:
    """The times of a run's batches, in order: one plausible time for a batch whose examples disagree.

    A single example that is dated years ahead must not make all rows look old: the rule is that of
    `monolith.tables.EventClock`. Not thread-safe.

    Args:
        newest: Time to continue from, in Unix seconds; 0: no earlier batch.
    """

    def __init__(self, newest: int = 0) -> None:
        self.newest = newest
        """Newest time of all batches so far."""
        self.num_ahead = 0
        """Examples whose times were not believed."""

    def time_of(self, batch: Any) -> int | None:
        """Returns the newest time of a batch that is not far ahead; None if it has no such column."""
        times = times_of(batch)
        if times is None:
            return None
        seconds = times.reshape(-1).to("cpu", torch.int64).numpy()
        lowest, highest = int(seconds.min()), int(seconds.max())
        if lowest < 0 or highest >= _TIME_END:
            raise InvalidArgumentError(_wrong_time(seconds))
        bounded = bound_times(seconds, self.newest)
        time = highest
        if bounded.num_ahead:
            time = int(bounded.times.max())
            self._count(bounded.num_ahead, example=int(seconds.argmax()), got=highest, taken=time)
        self.newest = max(self.newest, time)
        return time

    def _count(self, num_ahead: int, *, example: int, got: int, taken: int) -> None:
        if self.num_ahead == 0:
            _log.warning(
                "column %r: example %d of a batch has the time %d, more than a day ahead of all before; %d is taken for"
                " the batch. One batch moves the clock by a day at most; later ones are only counted",
                REQUEST_TIME,
                example,
                got,
                taken,
            )
        self.num_ahead += num_ahead


def _wrong_time(seconds: NDArray[np.int64]) -> str:
    example = int(np.flatnonzero((seconds < 0) | (seconds >= _TIME_END))[0])
    got = int(seconds[example])
    unit = "; it looks like milliseconds" if _TIME_END <= got < 1000 * _TIME_END else ""
    return (
        f"column {REQUEST_TIME!r}: example {example} of the batch must have Unix seconds in [0, 2^32), got {got}{unit}."
        f" To leave such examples out: dataset.filter(data.InRange({REQUEST_TIME!r}, 0, 2**32, bad=BadRecords(limit)))"
    )


def times_of(batch: Any) -> Tensor | None:
    """Returns the request times of a batch unchanged; None if it has none."""
    # A dict is the usual batch, and the check of an abstract class is slow.
    if not (type(batch) is dict or isinstance(batch, Mapping)) or REQUEST_TIME not in batch:
        return None
    times = batch[REQUEST_TIME]
    while isinstance(times, Ragged):
        times = times.values
    if not isinstance(times, Tensor):
        raise TypeError(f"column {REQUEST_TIME!r}: expected int64 Unix seconds, got {type(times).__name__}")
    if times.is_floating_point() or times.is_complex():
        raise TypeError(f"column {REQUEST_TIME!r}: expected int64 Unix seconds, got {times.dtype}")
    return times if times.numel() else None
