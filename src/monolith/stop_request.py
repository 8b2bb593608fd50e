"""The request that a process end, which a handler of signals may make while the same thread waits for it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import NoReturn

__all__ = ["StopRequest"]

_LOOK_SECONDS = 1.0
"""Python does not run the handler of a signal that came just before a wait began until the wait is over."""


class StopRequest(threading.Event):
    """An event that a handler of signals may set, once and for all.

    A plain event would not do: a handler can come while the thread that it interrupts holds the event's own lock in
    `wait`, and then waits for itself.

    >>> request = StopRequest()
    >>> request.wait(0.0)
    False
    >>> request.set()
    >>> request.wait()
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_made = False
        self._unmade = threading.Lock()  # held until it is made
        self._unmade.acquire()

    def is_set(self) -> bool:
        """Whether somebody has made it."""
        return self._is_made

    def set(self) -> None:
        """Lets all waits return. Calling it again does nothing."""
        self._is_made = True
        with suppress(RuntimeError):  # it is free already
            self._unmade.release()

    def clear(self) -> NoReturn:
        """Nobody takes a request back.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("a request to stop cannot be taken back: make a new StopRequest")

    def wait(self, timeout: float | None = None) -> bool:
        """Returns when it is made, or after these seconds; whether it is."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._is_made:
            rest = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
            if rest <= 0:
                return False
            if self._unmade.acquire(timeout=rest):
                self.set()  # for others that wait
        return True
