"""A request to stop a process, which a signal handler may make while the same thread waits for it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import NoReturn

__all__ = ["StopRequest"]

_LOOK_SECONDS = 1.0
"""Python does not run the handler of a signal that came just before a wait began until the wait is over."""


class StopRequest(threading.Event):
    """An event that a signal handler may set, once and for all.

    A plain event would not do: a handler can run while the thread that it interrupts holds the event's own lock in
    `wait`, which would deadlock.

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
        """Returns whether the request was made."""
        return self._is_made

    def set(self) -> None:
        """Makes the request: all waits return. Idempotent."""
        self._is_made = True
        with suppress(RuntimeError):  # it is free already
            self._unmade.release()

    def clear(self) -> NoReturn:
        """Raises: a request cannot be withdrawn.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("a request to stop cannot be taken back: make a new StopRequest")

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the request, at most for the timeout in seconds; returns whether it was made."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._is_made:
            rest = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
            if rest <= 0:
                return False
            if self._unmade.acquire(timeout=rest):
                self.set()  # for others that wait
        return True
