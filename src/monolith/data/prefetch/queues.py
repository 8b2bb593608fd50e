"""Bounded queues of tensors and structures of them, by the names that they have upstream.

`PaddingFIFOQueue` checks what goes in against types and shapes, and can keep it on a GPU. The others have the source of
their elements: `enqueue_op` makes the next one and adds it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from monolith.data.prefetch.bounded_queue import BoundedQueue
from monolith.data.prefetch.element import Element
from monolith.data.prefetch.staging import SideStreams, StagedTensors
from monolith.dependence import ReadsFrom, RecordedCall
from monolith.errors import CancelledError
from monolith.tensors import NestedTensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from monolith.dependence import Op

TensorSource: TypeAlias = "Tensor | Callable[[], Tensor]"
"""Source of a queue: a tensor, or a function that makes one for each element."""

Shape: TypeAlias = "Sequence[int | None] | None"
"""Sizes of the dims, None for any size; None instead of the list for any number of dims."""


class PaddingFIFOQueue(BoundedQueue[StagedTensors]):
    """A bounded queue of lists of tensors, whose shapes may differ from element to element.

    Args:
        capacity: Maximum number of queued elements.
        dtypes: Types of the tensors of an element.
        shapes: Shapes of the tensors of an element; default: any.
        name: Name in messages and of threads.
        device: Device of queued elements. A copy to a GPU runs on a side stream, and elements are taken on that GPU; by
            default tensors are not moved.

    Raises:
        ValueError: there are not as many shapes as types.
    """

    def __init__(
        self,
        capacity: int,
        dtypes: Sequence[torch.dtype],
        shapes: Sequence[Shape] | None = None,
        *,
        name: str = "padding_fifo_queue",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(capacity, name=name)
        if shapes is not None and len(shapes) != len(dtypes):
            raise ValueError(
                f"Queue shapes must have the same length as dtypes, received {len(shapes)} shapes, {len(dtypes)} dtypes"
            )
        self.dtypes = list(dtypes)
        """Types of the tensors of an element."""
        self.shapes: list[Shape] = [None] * len(dtypes) if shapes is None else list(shapes)
        """Shapes of the tensors of an element; None: any."""
        self._device = None if device is None else torch.device(device)
        self._streams = SideStreams()

    def enqueue(self, tensors: Tensor | Sequence[Tensor], timeout_seconds: float | None = None) -> None:
        """Adds one element, waiting for room if need be.

        Raises:
            TypeError: something is no tensor.
            ValueError: other types, shapes or another number of tensors than the queue was made for.
            CancelledError: the queue is closed.
        """
        element = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        self._check(element)
        staged = StagedTensors(element) if self._device is None else self._streams.stage(element, self._device)
        self.put(staged, timeout_seconds)

    def dequeue(self, timeout_seconds: float | None = None) -> Tensor | list[Tensor]:
        """Returns the next element: a list of tensors, or the tensor itself where an element has only one.

        Raises:
            OutOfRangeError: the queue is closed and empty.
        """
        tensors = self.get(timeout_seconds).receive()
        return tensors[0] if len(tensors) == 1 else tensors

    def enqueue_many(self, *_: Any, **__: Any) -> None:
        """Raises: elements differ in shape, so there is no stacked tensor to take them from."""
        raise NotImplementedError("enqueue_many is not supported by PaddingFIFOQueue; call enqueue for each element")

    def dequeue_many(self, *_: Any, **__: Any) -> list[Tensor]:
        """Raises: elements differ in shape, so there is no stacked tensor to return."""
        raise NotImplementedError("dequeue_many is not supported by PaddingFIFOQueue; call dequeue for each element")

    def _check(self, element: list[Tensor]) -> None:
        if len(element) != len(self.dtypes):
            raise ValueError(f"queue {self.name!r}: expected {len(self.dtypes)} tensors, got {len(element)}")
        for index, (tensor, dtype, shape) in enumerate(zip(element, self.dtypes, self.shapes, strict=True)):
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"queue {self.name!r}: expected a tensor at position {index}, got {type(tensor).__name__}"
                )
            if tensor.dtype != dtype or not _fits(tensor.shape, shape):
                wanted = "any shape" if shape is None else f"shape {tuple(shape)}"
                raise ValueError(
                    f"queue {self.name!r}: expected {dtype} of {wanted} at position {index}, "
                    f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
                )


class ElementQueue(BoundedQueue[Element]):
    """A bounded queue of elements made by a function; each is taken as it was put, its GPU tensors ready for use.

    Args:
        make: Makes the next element.
        capacity: Maximum number of queued elements.
        queue_name: Name in messages and of threads.
        reads_from: The calls that run, and the tensors that are read, when `make` runs.
    """

    def __init__(
        self, make: Callable[[], Element], capacity: int, queue_name: str, *, reads_from: Sequence[Op] = ()
    ) -> None:
        super().__init__(capacity, name=queue_name)
        self._make = make
        self._unsent: deque[Element] = deque()
        self.enqueue_op: RecordedCall[[], None] = RecordedCall(
            self._enqueue_next, name=f"{queue_name}_enqueue", reads_from=reads_from
        )
        """Makes the next element and adds it, waiting for room if need be. An element that it could not add because
        the queue was closed meanwhile is kept, and is the next one once the queue is open again."""

    @property
    def queue(self) -> BoundedQueue[Element]:
        """This queue: elements with tensors on several devices have one queue."""
        return self

    @property
    def queues(self) -> list[BoundedQueue[Element]]:
        """A list of this queue, for `MultiQueueRunner`."""
        return [self]

    def enqueue(self, element: Element, timeout_seconds: float | None = None) -> None:
        """Adds an element, waiting for room if need be. Raises as `put` does."""
        self.put(element, timeout_seconds)

    def dequeue(self, timeout_seconds: float | None = None) -> list[Tensor]:
        """Returns the tensors of the next element in the order of `NestedTensors`. Raises as `get` does."""
        return NestedTensors(self.dequeue_structure(timeout_seconds)).get_tensors()

    def dequeue_structure(self, timeout_seconds: float | None = None) -> Any:
        """Returns the structure of the next element. Raises as `get` does."""
        return self.get(timeout_seconds).receive()

    def clear(self) -> None:
        """Drops the elements that wait, and what a cancelled `enqueue_op` has kept."""
        self._unsent.clear()
        super().clear()

    def _enqueue_next(self) -> None:
        try:
            element = self._unsent.popleft()
        except IndexError:
            element = self._make()
        try:
            self.put(element)
        except CancelledError:
            self._unsent.append(element)
            raise


class FIFOQueue(ElementQueue):
    """A bounded queue of lists of tensors on any devices, with the source of its elements.

    Args:
        dense_list: The tensors of an element: what a tensor holds at the time of `enqueue_op`, or what a function
            returns then.
        capacity: Maximum number of queued elements.
        queue_name: Name in messages and of threads.

    Raises:
        ValueError: `dense_list` is None.
        TypeError: `dense_list` is not a list, or something in it is neither a tensor nor a function.

    >>> queue = FIFOQueue([torch.tensor([1.0, 2.0])])
    >>> queue.enqueue_op()
    >>> queue.dequeue()
    [tensor([1., 2.])]
    """

    def __init__(
        self, dense_list: Sequence[TensorSource], capacity: int = 2, queue_name: str = "prefetch_queue"
    ) -> None:
        sources = _require_sources(dense_list)
        super().__init__(lambda: _evaluate(sources), capacity, queue_name, reads_from=ops_of(sources))

    def dequeue(self, timeout_seconds: float | None = None) -> list[Tensor]:
        """Returns the next element, a list even of a single tensor. Raises as `get` does."""
        tensors: list[Tensor] = self.dequeue_structure(timeout_seconds)
        return tensors


class MultiFIFOQueue(FIFOQueue):
    """Upstream's name of a `FIFOQueue` for tensors on several devices, which any `FIFOQueue` takes."""


def _require_sources(dense_list: object) -> list[TensorSource]:
    if dense_list is None:
        raise ValueError("dense_list must be a list of tensors, got None")
    if not isinstance(dense_list, list):
        raise TypeError(f"dense_list must be a list of tensors, got {type(dense_list).__name__}")
    for index, source in enumerate(dense_list):
        if not (isinstance(source, Tensor) or callable(source)):
            raise TypeError(
                f"dense_list: expected a tensor or a function that makes one at position {index}, "
                f"got {type(source).__name__}"
            )
    return list(dense_list)


def _evaluate(sources: Sequence[TensorSource]) -> Element:
    tensors = [source if isinstance(source, Tensor) else source() for source in sources]
    return Element(tensors, [tensor for tensor in tensors if tensor.is_cuda])


def ops_of(sources: Iterable[object]) -> list[Op]:
    """Returns the sources whose dependence can be followed: tensors and recorded calls."""
    return [source for source in sources if isinstance(source, Tensor | ReadsFrom)]


def _fits(actual: torch.Size, shape: Shape) -> bool:
    if shape is None:
        return True
    sizes = zip(actual, shape, strict=False)
    return len(actual) == len(shape) and all(want is None or size == want for size, want in sizes)
