"""A clock that moves only when a test says so."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FakeClock"]

_PATIENCE_SECONDS = 30.0
"""How long a test may really wait before its mistake is reported instead of hanging."""


class FakeClock:
    """A `monolith.clock.Clock` whose time stands still between calls of `advance`.

    By default `sleep` advances the clock by itself and returns at once, which suits code of one thread. With
    ``blocking=True`` it waits until another thread has advanced the clock far enough: a test starts the thread under
    test, waits for it in `wait_for_sleepers`, then advances. One lock guards the state; every method may be called from
    any thread.

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
        """Seconds since the Unix epoch, as told."""
        with self._changed:
            return self._now

    def monotonic(self) -> float:
        """Seconds by which the clock was advanced since it was made."""
        with self._changed:
            return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass and wake whoever has slept long enough."""
        if not seconds >= 0:
            raise ValueError(f"fake clock: time passes by seconds >= 0, got {seconds}; write jump_to() to set the date")
        with self._changed:
            self._now += seconds
            self._monotonic += seconds
            self._changed.notify_all()
            waits = list(self._waits)
        for condition in waits:
            with condition:
                condition.notify_all()  # who waits looks at the time

    def jump_to(self, now: float) -> None:
        """Set the date, as an operator may; no time passes, so nobody wakes."""
        with self._changed:
            self._now = now

    def sleep(self, seconds: float) -> None:
        """Advance by ``seconds``, or wait until somebody has.

        Raises:
            TimeoutError: Nobody advanced a blocking clock for half a minute of real time.
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
        """As `sleep`, without the condition, which is held; a blocking clock also returns when that is notified.

        Raises:
            TimeoutError: Nobody notified it or advanced a blocking clock for half a minute of real time.
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
        """Return once at least ``count`` threads are inside `sleep`.

        Raises:
            TimeoutError: They did not come within half a minute of real time.
        """
        with self._changed:
            self._wait_until(lambda: self._sleepers >= count, f"for {count} sleepers")

    def _wait_until(self, reached: Callable[[], bool], what: str) -> None:
        if not self._changed.wait_for(reached, _PATIENCE_SECONDS):
            raise TimeoutError(f"fake clock: waited {_PATIENCE_SECONDS:.0f} s {what}; is at {self._monotonic}")
