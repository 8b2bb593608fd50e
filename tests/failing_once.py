"""A call of a background thread that fails unexpectedly once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from monolith.background import PeriodicThread

ENDS_HANGS = 60.0


class FailingOnce:
    """Stands in for a function: it raises where a thread of a name calls it first, and then does what that does.

    Args:
        call: The function.
        thread: Name of the thread; calls of others do not fail.
    """

    def __init__(self, call: Callable[..., Any], *, thread: str) -> None:
        self.error = ZeroDivisionError(f"a bug in {thread}")
        self._call = call
        self._thread = thread
        self._failed: threading.Thread | None = None
        self._reported: BaseException | None = None
        self._came_again = threading.Event()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        thread = threading.current_thread()
        if thread.name == self._thread and self._failed is None:
            self._failed = thread
            raise self.error
        answer = self._call(*arguments, **options)
        if thread is self._failed:
            assert isinstance(thread, PeriodicThread)
            self._reported = thread.last_error
            self._came_again.set()
        return answer

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]:
        """As a method of a class it is called with the object, as functions are."""
        return self if instance is None else partial(self, instance)

    def require_survived(self) -> None:
        """Fails unless the thread has called again, and then reported the error."""
        assert self._came_again.wait(ENDS_HANGS), f"{self._thread} has ended"
        assert self._reported is self.error
