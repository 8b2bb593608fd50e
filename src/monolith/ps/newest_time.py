"""The newest time of the rows on all servers, as far as a client knows it: answers of servers bring it along."""

from __future__ import annotations

import threading

__all__ = ["NewestTime"]


class NewestTime:
    """Unix seconds; called, it tells them. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0

    def __call__(self) -> int:
        """What is known now."""
        return self._seconds

    def raise_to(self, seconds: int) -> None:
        """Somebody has seen this time."""
        if seconds > self._seconds:
            with self._lock:
                self._seconds = max(self._seconds, seconds)

    def set(self, seconds: int) -> None:
        """The rows are others now: time begins anew."""
        with self._lock:
            self._seconds = seconds
