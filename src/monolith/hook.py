"""`Hook`, the base of what is attached to a session, and its view of the session: `HookedSession`, `StepContext`.

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

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from threading import RLock

    from torch import Tensor

    from monolith.checkpoint import TrainState

__all__ = ["Call", "Calls", "Hook", "HookedSession", "LastStep", "NamedLists", "StepContext", "stop_together"]

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


class NamedLists(Protocol):
    """Named lists through which parts of a model share values; `monolith.train.Collections` is one.

    Values added during a step stay until the next step begins; values added before the first step stay.
    """

    def add(self, names: str | Sequence[str], value: Any) -> None:
        """Appends `value` to one or several lists."""

    def get(self, name: str) -> list[Any] | None:
        """Returns the list of this name; None where nothing was added."""

    def clear(self, name: str) -> None:
        """Empties the list of this name."""


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
    def collections(self) -> NamedLists:
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
