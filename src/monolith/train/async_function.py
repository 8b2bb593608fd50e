"""Functions that run during the next step instead of within this one, such as pushing gradients to a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.data.prefetch import ElementQueue, element_of, ops_of
from monolith.dependence import RecordedCall, check_ops_dependence
from monolith.errors import DeadlineExceededError, FailedPreconditionError
from monolith.hooks import AsyncPushHook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from monolith.dependence import Op
    from monolith.hook import Hook

_MAX_WAITING = 16
"""Calls of one function that may wait: those of a step, mostly one. More means that nothing runs them."""


class AsyncFunctionMgr:
    """Turns functions into calls that only queue their arguments, and keeps the hooks that run them a step later.

    Args:
        is_async: Default of `is_async`: functions run a step later; otherwise they run where they are called.

    >>> import torch
    >>> pushed = []
    >>> manager = AsyncFunctionMgr()
    >>> push = manager.add_async_function(lambda grad: pushed.append(float(grad)))
    >>> push(torch.tensor(0.5)); pushed
    []
    >>> manager.hooks[0].end(None); pushed
    [0.5]
    """

    def __init__(self, is_async: bool = True) -> None:
        self._is_async = is_async
        self._hooks: list[Hook] = []

    @property
    def hooks(self) -> list[Hook]:
        """Returns the hooks for the session: one for each asynchronous function."""
        return list(self._hooks)

    def add_async_function(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_async: bool | None = None,
        queue_name: str = "async_queue",
    ) -> RecordedCall[..., Any]:
        """Returns the call to make in each step; `target` then runs during the next step, or at the end.

        Calls run in order, those of one step before those of the next. Tensors are not copied: do not write to them
        afterwards.

        Args:
            target: Runs in another thread.
            args: For `target`: tensors, raggeds, numbers, texts and structures of them (see `NestedTensors`). A
                function among them is called in each step, and its value is passed. If neither `args` nor `kwargs` is
                given, the returned call takes the arguments.
            kwargs: Keyword arguments for `target`.
            is_async: Whether to run a step later; default: that of the manager.
            queue_name: Name of the queue in messages.

        Raises:
            InvalidArgumentError: an argument is computed from `target`, which would then run twice.

        The returned call raises FailedPreconditionError if no hook runs the queued calls.
        """
        call = _AsyncCall(target, args, kwargs, queue_name)
        if not (self._is_async if is_async is None else is_async):
            return RecordedCall(call.run_now, name=f"{queue_name}_run", reads_from=[*ops_of([target]), *call.reads])
        enqueue_op = RecordedCall(call.enqueue, name=f"{queue_name}_enqueue", reads_from=call.reads)
        run_ops = RecordedCall(call.run_next, name=f"{queue_name}_run", reads_from=ops_of([target]))
        check_ops_dependence(enqueue_op, [run_ops, *ops_of([target])])
        self._hooks.append(AsyncPushHook(call.queue, run_ops))
        return enqueue_op


class _AsyncCall:
    """A function, its arguments, and the queue in which they wait."""

    def __init__(
        self, target: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, queue_name: str
    ) -> None:
        if not callable(target):
            raise TypeError(f"{queue_name!r}: expected a function, got {type(target).__name__}")
        self._target = target
        self._name = queue_name
        self._arguments = None if args is None and kwargs is None else (tuple(args or ()), dict(kwargs or {}))
        self.reads: list[Op] = ops_of(_leaves(self._arguments))
        self.queue = ElementQueue(self._no_source, _MAX_WAITING, queue_name, reads_from=self.reads)

    def run_now(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function with the arguments of this step."""
        args, kwargs = self._of_this_step(args, kwargs)
        return self._target(*args, **kwargs)

    def enqueue(self, *args: Any, **kwargs: Any) -> None:
        """Queues the arguments of this step."""
        element = element_of(self._of_this_step(args, kwargs))
        try:
            self.queue.enqueue(element, timeout_seconds=0)
        except DeadlineExceededError:
            raise FailedPreconditionError(
                f"{self._name!r}: {_MAX_WAITING} calls are queued and no session runs them; attach the manager's hooks "
                "to the session"
            ) from None

    def run_next(self) -> Any:
        """Runs the function with the arguments that have waited longest."""
        args, kwargs = self.queue.dequeue_structure(timeout_seconds=0)
        return self._target(*args, **kwargs)

    def _of_this_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._arguments is None:
            return args, kwargs
        if args or kwargs:
            raise TypeError(f"{self._name!r} was given its arguments when it was added; call it without any")
        called: tuple[tuple[Any, ...], dict[str, Any]] = _called(self._arguments)
        return called

    def _no_source(self) -> Any:
        raise NotImplementedError(f"{self._name!r} is filled by its steps, not by a thread")


def _leaves(nested: Any) -> Iterator[Any]:
    if isinstance(nested, dict):
        nested = nested.values()
    elif not isinstance(nested, list | tuple):
        yield nested
        return
    for item in nested:
        yield from _leaves(item)


def _called(nested: Any) -> Any:
    """Returns the structure with its functions replaced by their values."""
    if isinstance(nested, dict):
        return {key: _called(item) for key, item in nested.items()}
    if isinstance(nested, list | tuple):
        items = [_called(item) for item in nested]
        return items if isinstance(nested, list) else tuple(items)
    return nested() if callable(nested) else nested
