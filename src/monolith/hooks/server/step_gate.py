"""The gate between two steps: requests of an operator run there, never during a step.

The training thread runs them when it passes the gate, so that no other thread touches the state of a session. While the
training thread is elsewhere and certainly not inside a step, the requesting thread runs them itself, and steps wait.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from monolith.errors import CancelledError, FailedPreconditionError, OpError

if TYPE_CHECKING:
    from collections.abc import Callable


_LOOK_SECONDS = 0.2
"""Interval at which a waiting thread polls for what has no notification: a cancelled call, a stop."""


class _Request:
    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self.begun = False
        self.done = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.action()
        except BaseException as error:
            self.error = error  # raised in the requesting thread
            if not isinstance(error, Exception):
                raise
        finally:
            self.done = True


class StepGate:
    """Serves requests between steps, and blocks steps while `is_paused`.

    The training thread calls `enter_step` and `leave_step`; any thread may call the other methods. One condition guards
    the state; requests run without it.

    Args:
        is_paused: Whether no step may begin now.
    """

    def __init__(self, is_paused: Callable[[], bool]) -> None:
        self._is_paused = is_paused
        self._changed = threading.Condition(threading.Lock())
        # Guarded by the condition:
        self._open = False
        self._stepping = False
        self._serving = False
        self._requests: deque[_Request] = deque()
        self._step_lock: threading.RLock | None = None

    def open(self, step_lock: threading.RLock) -> None:
        """Accepts requests: a session is open, and between two steps.

        Args:
            step_lock: Lock that the session holds during a step, also outside `enter_step` and `leave_step`.
        """
        with self._changed:
            self._open = True
            self._stepping = False
            self._step_lock = step_lock
            self._changed.notify_all()

    def close(self) -> None:
        """Rejects requests, including those that wait; a running one completes."""
        with self._changed:
            self._open = False
            self._requests.clear()
            self._changed.notify_all()

    def wake(self) -> None:
        """Wakes waiting threads, which check their conditions again."""
        with self._changed:
            self._changed.notify_all()

    def enter_step(self, stop_requested: Callable[[], bool]) -> None:
        """Serves waiting requests, and returns when a step may run."""
        self._pass(stop_requested, stepping=True)

    def leave_step(self, stop_requested: Callable[[], bool]) -> None:
        """Serves waiting requests at the end of a step, and blocks during a pause."""
        self._pass(stop_requested, stepping=False)

    def run_between_steps(self, action: Callable[[], object], is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Runs `action` between two steps, and returns when it is done.

        Args:
            action: Its exception is raised here.
            is_wanted: Polled while waiting; False cancels the request.

        Raises:
            FailedPreconditionError: No session is open, or it ended before the request was served.
            CancelledError: `is_wanted` returned False.
        """
        request = _Request(action)
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
        while not request.done:
            if not self._serve_if_idle():
                self._wait_for(request, is_wanted)
        if request.error is not None:
            raise request.error

    def _pass(self, stop_requested: Callable[[], bool], *, stepping: bool) -> None:
        """Serves requests until none waits and steps may run. A stop request ends a pause: the session can end."""
        while True:
            with self._changed:
                self._stepping = False
                waits = self._serving or (self._open and bool(self._requests))
                if not waits and (not self._is_paused() or stop_requested()):
                    self._stepping = stepping
                    return
                request = self._take()
                if request is None:
                    self._changed.wait(_LOOK_SECONDS)
            if request is not None:
                self._serve(request)

    def _serve_if_idle(self) -> bool:
        """Serves the next request in this thread if the training thread is elsewhere; returns whether it did."""
        with self._changed:
            lock = self._step_lock
        if lock is None or not lock.acquire(blocking=False):
            return False
        try:
            with self._changed:
                request = None if self._stepping else self._take()
            if request is not None:
                self._serve(request)
            return request is not None
        finally:
            lock.release()

    def _take(self) -> _Request | None:
        """Returns the next request to serve, or None. REQUIRES: the condition is held."""
        if self._serving or not self._requests or not self._open:
            return None
        self._serving = True
        request = self._requests.popleft()
        request.begun = True
        return request

    def _serve(self, request: _Request) -> None:
        try:
            request.run()
        finally:
            with self._changed:
                self._serving = False
                self._changed.notify_all()

    def _wait_for(self, request: _Request, is_wanted: Callable[[], bool]) -> None:
        with self._changed:
            if request.begun:
                if not request.done:
                    self._changed.wait(_LOOK_SECONDS)
                return
            refusal: OpError | None = None
            if not self._open:
                refusal = FailedPreconditionError("controller: no session trains now; nothing was done")
            elif not is_wanted():
                refusal = CancelledError("controller: the caller went away before its turn came; nothing was done")
            if refusal is not None:
                if request in self._requests:
                    self._requests.remove(request)
                raise refusal
            self._changed.wait(_LOOK_SECONDS)
