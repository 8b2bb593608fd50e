"""Batches made ahead of their use: a function becomes one that takes what a thread has already made."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from monolith.data.prefetch.element import element_of
from monolith.data.prefetch.queues import ElementQueue, ops_of
from monolith.data.prefetch.runner import MultiQueueRunner
from monolith.errors import DeadlineExceededError, OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 30.0
"""Seconds after which an empty queue without a producer is reported: usually its hook is missing."""


class Taker:
    """Takes the next structure out of a queue; also an iterator over all that come.

    Any thread may call it; each structure goes to one of them.
    """

    def __init__(self, queue: ElementQueue) -> None:
        self._queue = queue
        self.name = f"{queue.name}_dequeue"
        """Name in messages."""
        self.reads_from = (queue.enqueue_op,)
        """The call that made what is taken."""

    def __call__(self) -> Any:
        """Returns the next structure.

        Raises:
            OutOfRangeError: there is none left: the function that makes them has ended, or the queue was closed.
            BaseException: what the function raised, once everything made before it was taken.
        """
        if self._queue.size():
            return self._queue.dequeue_structure()
        try:
            return self._queue.dequeue_structure(_PATIENCE_SECONDS)
        except DeadlineExceededError:
            _logger.warning(
                "queue %r was empty for %g s; if nothing fills it, attach EnqueueHook(queue) or start a "
                "MultiQueueRunner",
                self._queue.name,
                _PATIENCE_SECONDS,
            )
        return self._queue.dequeue_structure()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self()
        except OutOfRangeError:
            raise StopIteration from None


def enqueue_dicts_with_queue_return(
    tensors: Callable[[], Any], capacity: int = 1, queue_name: str = "prefetch_queue"
) -> tuple[Callable[[], Any], ElementQueue | None]:
    """Returns a function that takes the prefetched results of another one, and the queue between them.

    Nothing runs yet: `EnqueueHook(queue)` in a session, or `MultiQueueRunner` in a custom loop, starts the thread;
    `queue.enqueue_op()` makes and enqueues one structure in the calling thread.

    Args:
        tensors: Makes one structure of tensors, raggeds, numbers and texts (see `NestedTensors`) at each call; raises
            OutOfRangeError or StopIteration when there are no more. Numbers and texts travel with their structure.
        capacity: Maximum number of queued structures; the thread holds one more. With 0 there is no queue and no
            thread.
        queue_name: Name in messages and of threads.

    Returns:
        A `Taker` and its queue; with capacity 0 `tensors` itself and None.

    Raises:
        TypeError: `tensors` is not a function.
        ValueError: `capacity` is negative.

    >>> import torch
    >>> take, queue = enqueue_dicts_with_queue_return(lambda: {"x": torch.ones(2), "name": "u1"})
    >>> queue.enqueue_op()
    >>> take()
    {'x': tensor([1., 1.]), 'name': 'u1'}
    """
    if not callable(tensors):
        raise TypeError(
            f"queue {queue_name!r}: expected a function that makes one structure of tensors, "
            f"got {type(tensors).__name__}; of an iterator pass its __next__"
        )
    if capacity == 0:
        return tensors, None
    queue = ElementQueue(lambda: element_of(tensors()), capacity, queue_name, reads_from=ops_of([tensors]))
    return Taker(queue), queue


def prefetch(batches: Iterable[Any], capacity: int = 1, *, queue_name: str = "prefetch_queue") -> Iterator[Any]:
    """Yields the same batches in the same order, prefetched by a thread while the caller works.

    The thread starts with the first batch and ends when the iterator ends, is closed or is dropped. An error of
    `batches` is raised here, at its position in the sequence.

    Args:
        batches: Yields structures of tensors, as `enqueue_dicts_with_queue_return` accepts them.
        capacity: Maximum number of queued batches; the thread holds one more. With 0 there is no thread.
        queue_name: Name in messages and of the thread.

    >>> import torch
    >>> [int(batch["x"]) for batch in prefetch({"x": torch.tensor(i)} for i in range(3))]
    [0, 1, 2]
    """
    iterator = iter(batches)
    _, queue = enqueue_dicts_with_queue_return(iterator.__next__, capacity, queue_name)
    return iterator if queue is None else _taken(queue)


def _taken(queue: ElementQueue) -> Iterator[Any]:
    with MultiQueueRunner(queue, [queue.enqueue_op]):
        yield from Taker(queue)
