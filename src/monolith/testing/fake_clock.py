"""A clock that moves only when a test advances it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_SECONDS = 30.0
"""Limit of real waiting time, so that a mistake in a test is reported instead of hanging."""


class FakeClock:
    """A `monolith.clock.Clock` whose time changes only in calls of `advance`.

    By default `sleep` advances the clock by itself and returns immediately, which suits code of one thread. With
    ``blocking=True`` it waits until another thread has advanced the clock far enough: a test starts the thread under
    test, waits for it in `wait_for_sleepers`, then advances. Thread-safe; one lock guards the state.

    >>> clock = FakeClock(now=1000.0)
    >>> clock.sleep(2.5)
    >>> clock.now(), clock.monotonic()
    (1002.5, 2.5)
    """

    def __init__(self, now: float = 0.0, *, blocking: bool = False) -> None:
        self._changed = threading.Condition()
        self._now = now
        self._monotonic = 0.0
        self._sleepers = 0
        self._waits: list[threading.Condition] = []
        self._blocking = blocking

    def now(self) -> float:
        """Returns the seconds since the Unix epoch, as set."""
        with self._changed:
            return self._now

    def monotonic(self) -> float:
        """Returns the seconds by which the clock was advanced since it was created."""
        with self._changed:
            return self._monotonic

    def advance(self, seconds: float) -> None:
        """Advances the clock and wakes threads that have slept long enough."""
        if not seconds >= 0:
            raise ValueError(f"fake clock: time passes by seconds >= 0, got {seconds}; write jump_to() to set the date")
        with self._changed:
            self._now += seconds
            self._monotonic += seconds
            self._changed.notify_all()
            waits = list(self._waits)
        for condition in waits:
            with condition:
                condition.notify_all()  # waiting threads check the time

    def jump_to(self, now: float) -> None:
        """Sets the date, as an operator may; no time passes, so no thread wakes."""
        with self._changed:
            self._now = now

    def sleep(self, seconds: float) -> None:
        """Advances by ``seconds``, or waits until another thread has.

        Raises:
            TimeoutError: No thread advanced a blocking clock for half a minute of real time.
        """
        if not self._blocking:
            self.advance(max(seconds, 0.0))
            return
        with self._changed:
            wake_at = self._monotonic + seconds
            self._sleepers += 1
            self._changed.notify_all()
            try:
                self._wait_until(lambda: self._monotonic >= wake_at, f"to be advanced to {wake_at}")
            finally:
                self._sleepers -= 1

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Sleeps like `sleep`, with the held condition released; a blocking clock also returns when it is notified.

        Raises:
            TimeoutError: No thread notified it or advanced a blocking clock for half a minute of real time.
        """
        if not self._blocking:
            condition.release()
            try:
                self.sleep(seconds)
            finally:
                condition.acquire()
            return
        with self._changed:
            self._sleepers += 1
            self._waits.append(condition)
            self._changed.notify_all()
        try:
            if not condition.wait(_PATIENCE_SECONDS):
                raise TimeoutError(
                    f"fake clock: waited {_PATIENCE_SECONDS:.0f} s for a condition; is at {self._monotonic}"
                )
        finally:
            with self._changed:
                self._sleepers -= 1
                self._waits.remove(condition)

    def wait_for_sleepers(self, count: int) -> None:
        """Returns once at least ``count`` threads are inside `sleep`.

        Raises:
            TimeoutError: Fewer threads sleep after half a minute of real time.
        """
        with self._changed:
            self._wait_until(lambda: self._sleepers >= count, f"for {count} sleepers")

    def _wait_until(self, reached: Callable[[], bool], what: str) -> None:
        if not self._changed.wait_for(reached, _PATIENCE_SECONDS):
            raise TimeoutError(f"fake clock: waited {_PATIENCE_SECONDS:.0f} s {what}; is at {self._monotonic}")
