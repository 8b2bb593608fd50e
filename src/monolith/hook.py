"""`Hook`, the base of what is attached to a session, its view of the session, and the calls that a session makes.

A session calls the hooks in the order of its list, each method of all hooks before the next method::

    begin                   once, before anything exists
    after_create_session    when the session is ready, and again when it was rebuilt after a failure
        before_run          before each step; may return calls to run alongside the step
        after_run           after each step, unless it raised; sees what those calls returned
    end                     once, when training ends without an error

Cleanup that must also run after an error, such as stopping threads, belongs into `HookedSession.on_close`.

This module is below every package that has hooks, and above `monolith.checkpoint`, whose `TrainState` is the state of
every session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from threading import RLock

    from monolith.checkpoint import TrainState

_log = logging.getLogger(__name__)

__all__ = ["Call", "Calls", "Collections", "Hook", "HookedSession", "LastStep", "StepContext", "stop_together"]

Call: TypeAlias = Callable[[], Any]
"""A call to run alongside a step."""

Calls: TypeAlias = Call | Sequence[Call] | Mapping[str, Call] | None
"""Result of `Hook.before_run`: one call, several in a list or by name, or None."""


@runtime_checkable
class LastStep(Protocol):
    """Results of a step for hooks; `monolith.train.StepResult` is one."""

    @property
    def loss(self) -> Tensor | float | None:
        """The loss, a scalar; None where the step computed none."""

    @property
    def predictions(self) -> Any:
        """Predictions: a tensor, or several by name; None where there are none."""

    @property
    def label(self) -> Any:
        """Labels: a tensor, or several by name; None where there are none."""

    @property
    def num_examples(self) -> int:
        """Number of examples of the batch; 0 where the batch does not specify it."""


class Collections:
    """Named lists by which parts of a model share values: losses, summaries, metrics. For the thread that steps.

    A model is called for every batch, so its values belong to that step and are cleared when the next one starts.
    Values that were added before the first step, by `Task.build` or by a hook's `after_create_session`, stay.

    >>> collections = Collections()
    >>> collections.add(["losses", "all"], 0.0)
    >>> collections.add("losses", [])
    >>> collections.get("losses"), collections.get("nothing")
    ([0.0], None)
    >>> for step in (1, 2):
    ...     collections.begin_step()
    ...     collections.add("losses", step)
    >>> collections.get("losses")
    [0.0, 2]
    """

    def __init__(self) -> None:
        self._lasting: dict[str, list[Any]] = {}
        self._of_step: dict[str, list[Any]] | None = None
        """None before the first step."""

    def begin_step(self) -> None:
        """Clears the values of the previous step."""
        self._of_step = {}

    def end_step(self) -> None:
        """Lets go of the graphs of what this step has left; the values stay until the next one begins."""
        for values in (self._of_step or {}).values():
            values[:] = [value.detach() if isinstance(value, Tensor) else value for value in values]

    def add(self, names: str | Sequence[str], value: Any) -> None:
        """Appends `value` to one or several lists; numbers and texts always, anything else unless it is empty."""
        if not _is_worth_keeping(value):
            _log.info("value is %s, skip", value)
            return
        lists = self._lasting if self._of_step is None else self._of_step
        for name in [names] if isinstance(names, str) else dict.fromkeys(names):
            lists.setdefault(name, []).append(value)

    def get(self, name: str) -> list[Any] | None:
        """Returns the list of this name; None if nothing was added."""
        values = [*self._lasting.get(name, ()), *(self._of_step or {}).get(name, ())]
        return values or None

    def clear(self, name: str) -> None:
        """Empties the list of this name."""
        self._lasting.pop(name, None)
        if self._of_step is not None:
            self._of_step.pop(name, None)


class HookedSession(Protocol):
    """The interface of a session for its hooks.

    Any thread may read the step, request a stop and acquire the lock. The rest belongs to the training thread, and to a
    thread that holds `step_lock`.
    """

    @property
    def global_step(self) -> int:
        """Number of trained steps."""

    @property
    def last(self) -> LastStep | None:
        """Results of the last step; None before the first one, and where steps have none."""

    @property
    def state(self) -> TrainState:
        """Model, optimizers, step and positions: the content of a checkpoint.

        Raises:
            FailedPreconditionError: the session has no state, or none yet.
        """

    @property
    def collections(self) -> Collections:
        """Named lists of the model's parts."""

    @property
    def step_lock(self) -> RLock:
        """Held by the session during a step, including its hooks. A thread that holds it may read or save the state."""

    def settle(self) -> None:
        """Applies all updates in flight to the state, and discards prefetched rows."""

    @property
    def stop_requested(self) -> bool:
        """Whether the current step is the last one."""

    def request_stop(self) -> None:
        """Ends training after the current step."""

    def on_close(self, close: Call) -> None:
        """Registers `close`, called when the session closes, with or without an error, in reverse order."""


class StepContext:
    """One step of a session, as one hook sees it. Used by the training thread.

    Args:
        session: The session.
    """

    __slots__ = ("results", "session")

    def __init__(self, session: HookedSession) -> None:
        self.session = session
        self.results: Any = None
        """In `after_run`: results of the calls that this hook returned from `before_run`, in the same list or dict;
        None without calls.
        """

    @property
    def global_step(self) -> int:
        """Number of trained steps; in `after_run` this step is included."""
        return self.session.global_step

    @property
    def stop_requested(self) -> bool:
        """Whether training ends after this step."""
        return self.session.stop_requested

    def request_stop(self) -> None:
        """Ends training after this step. When requested in `before_run`, the step still runs.

        One rank of a synchronous run that requests a stop in `after_run` stops all ranks after the next step.
        """
        self.session.request_stop()

    def stop_together(self) -> None:
        """Ends training after this step, for a request that every rank of a synchronous run makes at the same step."""
        stop_together(self.session)


def stop_together(session: HookedSession) -> None:
    """See `StepContext.stop_together`; a session without ranks requests a plain stop."""
    getattr(session, "stop_together", session.request_stop)()


class Hook:
    """Base class of hooks. Override the methods that are needed; the others do nothing."""

    def begin(self) -> None:
        """Called once, before the session exists."""

    def after_create_session(self, session: HookedSession) -> None:
        """Called when the session is ready, and again each time it was rebuilt."""

    def before_run(self, context: StepContext) -> Calls:  # noqa: ARG002 - for overriding methods
        """Called before each step; the returned calls run alongside the step, in any order and in any thread."""
        return None

    def after_run(self, context: StepContext) -> None:
        """Called after each step that did not raise; `context.results` has the results of the calls of `before_run`."""

    def end(self, session: HookedSession) -> None:
        """Called once when training ends without an error, while the session can still be used."""


class HookCalls:
    """The hooks of one session. The thread that steps owns it."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = list(hooks)
        self._pushing: list[Hook] = []
        self._before: list[Hook] = []
        """Hooks that act before a step; most hooks do not, and a step is short."""
        self._after: list[tuple[Hook, int | None]] = []
        """Hooks that act after a step, and their index in `_before`."""
        self._executor: ThreadPoolExecutor | None = None

    def begin(self) -> None:
        """Calls `begin` of all hooks, before the session is created."""
        for hook in self._hooks:
            hook.begin()

    def after_create_session(self, session: HookedSession, pushing: Sequence[Hook] = ()) -> None:
        """Calls `after_create_session` of all hooks."""
        self._pushing = list(pushing)
        for hook in self._pushing:
            hook.begin()
        hooks = [*self._hooks, *self._pushing]
        self._before, self._after = [], []
        for hook in hooks:
            number = len(self._before) if _overrides(hook, "before_run") else None
            if number is not None:
                self._before.append(hook)
            if _overrides(hook, "after_run"):
                self._after.append((hook, number))
        for hook in hooks:
            hook.after_create_session(session)

    def finish_pushes(self, session: HookedSession) -> None:
        """Runs the calls that were deferred to the next step."""
        for hook in self._pushing:
            hook.end(session)

    def end(self, session: HookedSession) -> None:
        """Calls `end` of all hooks, after training ended without an error and all pushes are done."""
        for hook in self._hooks:
            hook.end(session)

    @contextmanager
    def around(self, session: HookedSession) -> Iterator[None]:
        """Calls the hooks before and after one step and, concurrently, the calls that they return; waits for these."""
        contexts = [StepContext(session) for _ in self._before]
        running: list[Future[Any]] = []
        try:
            for hook, context in zip(self._before, contexts, strict=True):
                calls = hook.before_run(context)
                if calls is not None:
                    context.results = self._start(calls, running)
            yield
        finally:
            if running:
                wait(running)
        if running:
            for context in contexts:
                context.results = _each(context.results, lambda future: future.result())
        without_calls = StepContext(session)
        for hook, number in self._after:
            hook.after_run(without_calls if number is None else contexts[number])

    def close(self) -> None:
        """Ends its threads."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()

    def _start(self, calls: Any, running: list[Future[Any]]) -> Any:
        executor = self._executor
        if executor is None:
            executor = self._executor = ThreadPoolExecutor(thread_name_prefix="session/beside")

        def start(call: Call) -> Future[Any]:
            running.append(executor.submit(call))
            return running[-1]

        return _each(calls, start)


def _overrides(hook: Hook, name: str) -> bool:
    return getattr(getattr(hook, name), "__func__", None) is not getattr(Hook, name)


def _each(calls: Any, action: Callable[[Any], Any]) -> Any:
    """Applies `action` to each call of a hook, in the same list or dict."""
    if calls is None:
        return None
    if isinstance(calls, Mapping):
        return {name: action(call) for name, call in calls.items()}
    if isinstance(calls, Sequence):
        return [action(call) for call in calls]
    return action(calls)


def _is_worth_keeping(value: Any) -> bool:
    if isinstance(value, bool | int | float | str | Tensor):
        return True
    return bool(value)
