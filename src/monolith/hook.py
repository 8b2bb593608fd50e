"""What can be attached to a session: `Hook`, and what it sees of it: `HookedSession` and `StepContext`.

A session calls the hooks in the order of its list, each method of all hooks before the next method::

    begin                   once, before anything exists
    after_create_session    when the session is ready, and again when it was rebuilt after a failure
        before_run          before each step; may return calls to run beside the step
        after_run           after each step, unless it raised; sees what those calls returned
    end                     once, when training ends without an error

What must be undone however a session ends, threads above all, is given to `HookedSession.on_close`.

Below every package that has hooks, and above `monolith.checkpoint`, whose `TrainState` is the state of every session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from types import TracebackType

    from torch import Tensor

    from monolith.checkpoint import TrainState

__all__ = [
    "Call",
    "Calls",
    "Hook",
    "HookedSession",
    "LastStep",
    "NamedLists",
    "StepContext",
    "StepLock",
    "stop_together",
]

Call: TypeAlias = Callable[[], Any]
"""Something to run beside a step."""

Calls: TypeAlias = Call | Sequence[Call] | Mapping[str, Call] | None
"""What `Hook.before_run` may return: one call, some in a list or by name, or nothing."""


@runtime_checkable
class LastStep(Protocol):
    """What a step leaves for hooks; `monolith.train.StepResult` is one."""

    @property
    def loss(self) -> Tensor | float | None:
        """A scalar; None where the step computed none."""
        ...

    @property
    def predictions(self) -> Any:
        """A tensor, or several by name; None where there are none."""
        ...

    @property
    def label(self) -> Any:
        """The same."""
        ...

    @property
    def num_examples(self) -> int:
        """Examples of the batch; 0 where the batch does not say."""
        ...


class NamedLists(Protocol):
    """What parts of a model leave for others under a name; `monolith.train.Collections` is one.

    What is added while a step runs stays until the next one begins; what was added before the first one stays.
    """

    def add(self, names: str | Sequence[str], value: Any) -> None:
        """Appends `value` to one or several lists."""
        ...

    def get(self, name: str) -> list[Any] | None:
        """The list of this name; None where nothing was added."""
        ...

    def clear(self, name: str) -> None:
        """Empties the list of this name."""
        ...


class StepLock(Protocol):
    """What a session holds while it works on a step, hooks included; a `threading.RLock` is one."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:
        """Takes it; False if it was not to be had."""
        ...

    def release(self) -> None:
        """Gives it back."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...


class HookedSession(Protocol):
    """What a hook may rely on of the session that it is attached to.

    Any thread may ask for the step, for a stop and for the lock; the rest belongs to the thread that steps, and to
    whoever holds `step_lock` meanwhile.
    """

    @property
    def global_step(self) -> int:
        """Number of steps that were trained."""
        ...

    @property
    def last(self) -> LastStep | None:
        """What the step that ran last has left; None before the first, and where steps leave nothing."""
        ...

    @property
    def state(self) -> TrainState:
        """Model, optimizers, step and positions: what a checkpoint holds.

        Raises:
            FailedPreconditionError: it has none, or none yet.
        """
        ...

    @property
    def collections(self) -> NamedLists:
        """What parts of the model leave for others."""
        ...

    @property
    def step_lock(self) -> StepLock:
        """Held while the session works on a step; who holds it may read or save the state."""
        ...

    def settle(self) -> None:
        """Brings every update that is under way into the state, and forgets rows that were read ahead."""
        ...

    @property
    def stop_requested(self) -> bool:
        """Whether the step that runs now is the last one."""
        ...

    def request_stop(self) -> None:
        """Ends training after the step that runs now."""
        ...

    def on_close(self, close: Call) -> None:
        """Has `close` called when the session closes, with or without an error; the last one given comes first."""
        ...


class StepContext:
    """One step of a session, as one hook sees it. Used by the thread that steps.

    Args:
        session: The session that steps.
    """

    __slots__ = ("_session", "results")

    def __init__(self, session: HookedSession) -> None:
        self._session = session
        self.results: Any = None
        """In `after_run`: what the calls returned that this hook gave in `before_run`, in the same list or dict; None
        if it gave none."""

    @property
    def session(self) -> HookedSession:
        """The session that steps."""
        return self._session

    @property
    def global_step(self) -> int:
        """Number of steps that were trained; in `after_run` this one is among them."""
        return self._session.global_step

    @property
    def stop_requested(self) -> bool:
        """Whether somebody asked to end training after this step."""
        return self._session.stop_requested

    def request_stop(self) -> None:
        """Ends training after this step. Asked for in `before_run`, the step still runs.

        One rank of a synchronous run that asks in `after_run` ends all of them after the next step.
        """
        self._session.request_stop()

    def stop_together(self) -> None:
        """Ends training after this step: for those who ask on every rank of a synchronous run at the same step."""
        stop_together(self._session)


def stop_together(session: HookedSession) -> None:
    """See `StepContext.stop_together`; sessions that know of no ranks stop as they are asked to."""
    getattr(session, "stop_together", session.request_stop)()


class Hook:
    """Base of what is attached to a session; override the methods that are needed, the others do nothing."""

    def begin(self) -> None:
        """Called once, before the session exists."""

    def after_create_session(self, session: HookedSession) -> None:
        """Called when the session is ready, and again each time it was rebuilt."""

    def before_run(self, context: StepContext) -> Calls:  # noqa: ARG002 - for those who override it
        """Called before each step; the calls it returns run beside the step, in any order and in any thread."""
        return None

    def after_run(self, context: StepContext) -> None:
        """Called after each step that did not raise; `context.results` has what the calls of `before_run` returned."""

    def end(self, session: HookedSession) -> None:
        """Called once when training ends without an error, while the session can still be used."""
