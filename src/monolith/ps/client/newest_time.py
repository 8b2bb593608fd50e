"""The newest event time of the rows on all servers, as last reported by their answers."""

from __future__ import annotations

import threading

__all__ = ["NewestTime"]


class NewestTime:
    """Unix seconds, returned by a call. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0

    def __call__(self) -> int:
        """Returns the newest known time."""
        return self._seconds

    def raise_to(self, seconds: int) -> None:
        """Raises the time, after it was seen in an answer or an update."""
        if seconds > self._seconds:
            with self._lock:
                self._seconds = max(self._seconds, seconds)

    def set(self, seconds: int) -> None:
        """Sets the time, after the rows were replaced."""
        with self._lock:
            self._seconds = seconds
