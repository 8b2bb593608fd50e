"""A session without a model: calls hooks around functions, for tests of hooks and for loops of one's own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Self, TypeVar

from monolith.hook import StepContext

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from types import TracebackType

    from monolith.hook import Call, Hook

__all__ = ["StepLoop"]

T = TypeVar("T")


class StepLoop:
    """Runs steps with hooks around them, in the order that `monolith.hook` describes. One thread steps.

    >>> from monolith.hook import Hook
    >>> class Stopper(Hook):
    ...     def after_run(self, context):
    ...         if context.global_step == 2:
    ...             context.request_stop()
    >>> with StepLoop([Stopper()]) as loop:
    ...     while not loop.stop_requested:
    ...         loop.run(lambda: print(loop.global_step))
    0
    1
    """

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = list(hooks)
        self._stop_requested = False
        self._global_step = 0
        self._closing = contextlib.ExitStack()
        self._executor: ThreadPoolExecutor | None = None

    @property
    def global_step(self) -> int:
        """Number of steps that were run."""
        return self._global_step

    @property
    def stop_requested(self) -> bool:
        """Whether the loop should end."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Asks the loop to end after the step that runs now."""
        self._stop_requested = True

    def on_close(self, close: Call) -> None:
        """Has `close` called when the loop is left; the last one given comes first."""
        self._closing.callback(close)

    def run(self, step: Callable[[], T]) -> T:
        """Runs one step, beside it the calls that hooks return, and waits for all of them."""
        executor = self._executor
        if executor is None:
            raise RuntimeError("StepLoop: run steps inside `with StepLoop(...) as loop:`")
        running: list[Future[Any]] = []

        def start(call: Call) -> Future[Any]:
            running.append(executor.submit(call))
            return running[-1]

        contexts = [StepContext(self) for _ in self._hooks]
        try:
            for hook, context in zip(self._hooks, contexts, strict=True):
                context.results = _each(hook.before_run(context), start)
            result = step()
        finally:
            wait(running)
        for context in contexts:
            context.results = _each(context.results, lambda future: future.result())
        self._global_step += 1
        for hook, context in zip(self._hooks, contexts, strict=True):
            hook.after_run(context)
        return result

    def __enter__(self) -> Self:
        with self._closing as undone:
            for hook in self._hooks:
                hook.begin()
            self._executor = undone.enter_context(ThreadPoolExecutor(thread_name_prefix="step_loop/beside"))
            for hook in self._hooks:
                hook.after_create_session(self)
            self._closing = undone.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._closing:
            if kind is None:
                for hook in self._hooks:
                    hook.end(self)


def _each(calls: Any, action: Callable[[Any], Any]) -> Any:
    """`action` of each of what a hook gave, in the same list or dict."""
    if calls is None:
        return None
    if isinstance(calls, Mapping):
        return {name: action(call) for name, call in calls.items()}
    if isinstance(calls, Sequence):
        return [action(call) for call in calls]
    return action(calls)
