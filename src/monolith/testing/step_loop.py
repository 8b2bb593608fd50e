"""A session without a task: calls hooks around functions, for tests of hooks and for custom loops."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Self, TypeVar

from monolith.checkpoint import TrainState
from monolith.errors import FailedPreconditionError
from monolith.hook import LastStep, StepContext
from monolith.train import Collections

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from types import TracebackType

    from monolith.hook import Call, Hook

T = TypeVar("T")


class StepLoop:
    """Runs steps with hooks around them, in the order that `monolith.hook` describes. One thread steps.

    Args:
        hooks: Called in this order.
        state: State for hooks to save, restore and inspect. The loop counts its steps there, so that a restored loop
            continues.

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

    def __init__(self, hooks: Sequence[Hook] = (), *, state: TrainState | None = None) -> None:
        self.last: LastStep | None = None
        """Result of the last step, if it is a `LastStep` such as `monolith.train.StepResult`."""
        self.collections = Collections()
        """Values of the last step for hooks, and values from before the first step."""
        self.step_lock = threading.RLock()
        """Held while a step runs, including its hooks."""
        self._hooks = list(hooks)
        self._given_state = state
        self._counted = TrainState() if state is None else state
        """Holds the step."""
        self.stop_requested = False
        """Whether the loop should end."""
        self._closing = contextlib.ExitStack()
        self._executor: ThreadPoolExecutor | None = None

    @property
    def global_step(self) -> int:
        """Number of steps run; the step of its state, if it was given one."""
        return self._counted.global_step

    @property
    def state(self) -> TrainState:
        """The given state.

        Raises:
            FailedPreconditionError: there is none.
        """
        if self._given_state is None:
            raise FailedPreconditionError(
                "StepLoop: it has no state to save, to restore or to look into; write"
                " `StepLoop(hooks, state=TrainState(model=...))`, or give a state to the hook that wants one"
            )
        return self._given_state

    def settle(self) -> None:
        """Settles its state; without one nothing is ever in flight."""
        self._counted.settle()

    def request_stop(self) -> None:
        """Requests the loop to end after the current step."""
        self.stop_requested = True

    def on_close(self, close: Call) -> None:
        """Registers `close`, called when the loop exits, in reverse order."""
        self._closing.callback(close)

    def run(self, step: Callable[[], T]) -> T:
        """Runs one step, alongside it the calls that hooks return, and waits for all of them."""
        if self._executor is None:
            raise RuntimeError("StepLoop: run steps inside `with StepLoop(...) as loop:`")
        with self.step_lock:
            return self._run(step, self._executor)

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
        with self.step_lock, self._closing:
            if kind is None:
                for hook in self._hooks:
                    hook.end(self)

    # Inside

    def _run(self, step: Callable[[], T], executor: ThreadPoolExecutor) -> T:
        running: list[Future[Any]] = []

        def start(call: Call) -> Future[Any]:
            running.append(executor.submit(call))
            return running[-1]

        self.collections.begin_step()
        contexts = [StepContext(self) for _ in self._hooks]
        try:
            for hook, context in zip(self._hooks, contexts, strict=True):
                context.results = _each(hook.before_run(context), start)
            result = step()
        finally:
            wait(running)
        for context in contexts:
            context.results = _each(context.results, lambda future: future.result())
        self.collections.end_step()
        self.last = result if isinstance(result, LastStep) else None
        self._counted.global_step += 1
        for hook, context in zip(self._hooks, contexts, strict=True):
            hook.after_run(context)
        return result


def _each(calls: Any, action: Callable[[Any], Any]) -> Any:
    """Applies `action` to each call of a hook, in the same list or dict."""
    if calls is None:
        return None
    if isinstance(calls, Mapping):
        return {name: action(call) for name, call in calls.items()}
    if isinstance(calls, Sequence):
        return [action(call) for call in calls]
    return action(calls)
