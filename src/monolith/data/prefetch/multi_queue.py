"""A queue for elements that are partly on the CPU and partly on GPUs.

The tensors on GPUs have a queue of their own, in which they wait with the events that signal when they are ready. Both
queues move together, so that the parts of an element stay together with any number of threads::

    element   [a (CPU), b (GPU), c (CPU)]
    queues    prefetch_queue: the element      prefetch_queue_gpu: b and its event
    taken     [a, b, c], after the stream that uses b waits for the event
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from monolith.data.prefetch.bounded_queue import BoundedQueue
from monolith.data.prefetch.element import FlatList
from monolith.data.prefetch.fifo_queue import evaluate, ops_of, require_sources
from monolith.data.prefetch.staging import StagedTensors
from monolith.dependence import RecordedCall
from monolith.errors import CancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from monolith.data.prefetch.element import Element
    from monolith.data.prefetch.fifo_queue import TensorSource
    from monolith.data.prefetch.gate import Lane
    from monolith.dependence import Op

__all__ = ["ElementQueue", "MultiFIFOQueue"]


class ElementQueue:
    """A bounded queue of elements made by a function; each is taken as it was put, its GPU tensors ready for use.

    Any thread may call any method.

    Args:
        make: Makes the next element.
        capacity: Maximum number of queued elements.
        queue_name: Name in messages and of threads.
        reads_from: The calls that run, and the tensors that are read, when `make` runs.
    """

    def __init__(
        self, make: Callable[[], Element], capacity: int, queue_name: str, *, reads_from: Sequence[Op] = ()
    ) -> None:
        self._make = make
        self._cpu_queue: BoundedQueue[Element] = BoundedQueue(capacity, name=queue_name)
        self._gpu_queue: BoundedQueue[StagedTensors | None] | None = None
        self._gpu_queue_lock = threading.Lock()
        self._gate = self._cpu_queue.gate
        self._lanes: list[Lane] = [self._cpu_queue.lane]
        self._unsent: deque[Element] = deque()
        self.enqueue_op: RecordedCall[[], None] = RecordedCall(
            self._enqueue_next, name=f"{queue_name}_enqueue", reads_from=reads_from
        )
        """Makes the next element and adds it, waiting for room if need be. An element that it could not add because
        the queue was closed meanwhile is kept, and is the next one once the queue is open again."""

    @property
    def name(self) -> str:
        """Name in messages and of threads."""
        return self._cpu_queue.name

    @property
    def queues(self) -> list[BoundedQueue[Any]]:
        """The CPU queue, and the GPU queue after the first tensor on a GPU."""
        return [self._cpu_queue] if self._gpu_queue is None else [self._cpu_queue, self._gpu_queue]

    @property
    def queue(self) -> BoundedQueue[Any]:
        """The only queue.

        Raises:
            NotImplementedError: there are several.
        """
        if self._gpu_queue is not None:
            raise NotImplementedError(f"{self.name!r} consists of several queues; use `queues`")
        return self._cpu_queue

    def size(self) -> int:
        """Elements that wait now, by the CPU queue; the GPU queue moves together with it."""
        return self._cpu_queue.size()

    def enqueue(self, element: Element, timeout_seconds: float | None = None) -> None:
        """Adds an element, waiting for room if need be. Raises as `Gate.put` does."""
        items: list[Any] = [element]
        if gpu_tensors := element.gpu_tensors():
            self._require_gpu_queue()
            items.append(StagedTensors(gpu_tensors))
        self._gate.put(self._lanes, items, timeout_seconds)

    def dequeue(self, timeout_seconds: float | None = None) -> list[Tensor]:
        """Returns the tensors of the next element, in their order. Raises as `Gate.get` does."""
        return self._take(timeout_seconds).get_tensors()

    def dequeue_structure(self, timeout_seconds: float | None = None) -> Any:
        """Returns the next element, put together again. Raises as `Gate.get` does."""
        return self._take(timeout_seconds).structure()

    def clear(self) -> None:
        """Drops the elements that wait, and what a cancelled `enqueue_op` has kept."""
        self._unsent.clear()
        self._gate.clear(self._lanes)

    def _take(self, timeout_seconds: float | None) -> Element:
        element: Element
        element, *staged = self._gate.get(self._lanes, timeout_seconds)
        for each in staged:
            if each is not None:  # of an element without tensors on a GPU
                each.receive()
        return element

    def _enqueue_next(self) -> None:
        try:
            element = self._unsent.popleft()
        except IndexError:
            element = self._make()
        try:
            self.enqueue(element)
        except CancelledError:
            self._unsent.append(element)
            raise

    def _require_gpu_queue(self) -> None:
        with self._gpu_queue_lock:
            if self._gpu_queue is None:
                self._gate.add_lane(self._lanes)
                name, lane = f"{self.name}_gpu", self._lanes[-1]
                self._gpu_queue = BoundedQueue(lane.capacity, name=name, gate=self._gate, lane=lane)


class MultiFIFOQueue(ElementQueue):
    """A bounded queue of lists of tensors on any devices, with the source of its elements.

    Args:
        dense_list: The tensors of an element: what a tensor holds at the time of `enqueue_op`, or what a function
            returns then.
        capacity: Maximum number of queued elements.
        queue_name: Name in messages and of threads.

    Raises:
        ValueError: `dense_list` is None.
        TypeError: `dense_list` is not a list, or something in it is neither a tensor nor a function.
    """

    def __init__(
        self, dense_list: Sequence[TensorSource], capacity: int = 2, queue_name: str = "prefetch_queue"
    ) -> None:
        sources = require_sources(dense_list)
        super().__init__(lambda: FlatList(evaluate(sources)), capacity, queue_name, reads_from=ops_of(sources))
        if any(getattr(source, "is_cuda", False) for source in sources):
            self._require_gpu_queue()
