"""The request that a process end, which a handler of signals may make while the same thread waits for it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

__all__ = ["StopRequest"]

_LOOK_SECONDS = 1.0
"""Python does not run the handler of a signal that came just before a wait began until the wait is over."""


class StopRequest:
    """As `threading.Event`, made once. Any thread may call it, and any handler of signals.

    An event would not do: a handler can come while the thread that it interrupts holds the event's own lock in `wait`,
    and then waits for itself.

    >>> request = StopRequest()
    >>> request.wait(0.0)
    False
    >>> request.make()
    >>> request.wait()
    True
    """

    def __init__(self) -> None:
        self._is_made = False
        self._unmade = threading.Lock()  # held until it is made
        self._unmade.acquire()

    @property
    def is_made(self) -> bool:
        """Whether somebody has made it."""
        return self._is_made

    def make(self) -> None:
        """Lets all waits return. Calling it again does nothing."""
        self._is_made = True
        with suppress(RuntimeError):  # it is free already
            self._unmade.release()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Returns when it is made, or after this time; whether it is."""
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._is_made:
            rest = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
            if rest <= 0:
                return False
            if self._unmade.acquire(timeout=rest):
                self.make()  # for others that wait
        return True
