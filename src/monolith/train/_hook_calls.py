"""Calls hooks around a step, in the order that `monolith.hook` describes, and runs their calls during the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monolith.hook import Hook, StepContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from monolith.hook import Call, HookedSession


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
