"""The gate between two steps: what an operator asks for happens there, never while a step runs."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from monolith.errors import CancelledError, FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["StepGate"]

_LOOK_SECONDS = 0.2
"""How often a waiting thread looks at what nobody tells it about: a cancelled call, a stop, a barrier elsewhere."""


class StepGate:
    """Lets either a step run or one request, and keeps steps back while `is_paused`.

    A request that waits is served before the next step. The thread that steps calls `enter_step` and `leave_step`; any
    thread calls the rest. One condition guards the state.

    Args:
        is_paused: Whether no step may begin now.
    """

    def __init__(self, is_paused: Callable[[], bool]) -> None:
        self._is_paused = is_paused
        self._changed = threading.Condition()
        # Guarded by the condition:
        self._open = False
        self._stepping = False
        self._serving = False
        self._num_requests = 0

    def open(self) -> None:
        """Accepts requests: a session is there, between two steps."""
        with self._changed:
            self._open = True
            self._stepping = False
            self._changed.notify_all()

    def close(self) -> None:
        """Refuses requests, also those that wait; one that runs ends by itself."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def wake(self) -> None:
        """Has waiting threads look again at once."""
        with self._changed:
            self._changed.notify_all()

    def enter_step(self, stop_requested: Callable[[], bool]) -> None:
        """Waits until a step may run; a requested stop ends a pause, so that the session can end."""
        with self._changed:
            while self._serving or self._num_requests or (self._is_paused() and not stop_requested()):
                self._changed.wait(_LOOK_SECONDS)
            self._stepping = True

    def leave_step(self) -> None:
        """The step is over."""
        with self._changed:
            self._stepping = False
            self._changed.notify_all()

    @contextlib.contextmanager
    def between_steps(self, is_wanted: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Holds steps and other requests back for the length of a with statement.

        Args:
            is_wanted: Asked while waiting; False gives up.

        Raises:
            FailedPreconditionError: No session is there, or it ended before the request was served.
            CancelledError: It is not wanted any more.
        """
        with self._changed:
            self._num_requests += 1
            try:
                self._wait_for_turn(is_wanted)
                self._serving = True
            finally:
                self._num_requests -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._serving = False
                self._changed.notify_all()

    def _wait_for_turn(self, is_wanted: Callable[[], bool]) -> None:
        """REQUIRES: the condition is held."""
        while True:
            if not self._open:
                raise FailedPreconditionError("controller: the session has ended or has not begun; nothing was done")
            if not is_wanted():
                raise CancelledError("controller: the caller went away before its turn came; nothing was done")
            if not self._stepping and not self._serving:
                return
            self._changed.wait(_LOOK_SECONDS)
