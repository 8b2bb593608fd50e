"""The gate of an owner in Python, which wakes the server when deferred pushes may be retried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith import _core

if TYPE_CHECKING:
    from collections.abc import Callable


class WakingGate:
    """`_core.PushGate`, for pushes that Python applies. Thread-safe.

    Args:
        wake: Makes the server retry calls that were answered "not now".
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._gate = _core.PushGate()
        self._wake = wake

    def enter(self, worker: int, seq: int, applied: int) -> bool:
        """Returns whether a push may pass now; if so, call `leave` afterwards."""
        return self._gate.enter(worker, seq, applied)

    def leave(self) -> None:
        """Marks the push as done."""
        self._gate.leave()

    def hold(self, seconds: float) -> bool:
        """Holds new pushes until `release` or the timeout, and drains the others. Returns False if one stays inside."""
        return self._gate.hold(seconds)

    def allow(self, limits: dict[int, int]) -> None:
        """Sets worker -> number of the last batch whose push may pass during the hold."""
        self._gate.allow(limits)
        self._wake()

    def release(self) -> None:
        """Lets all pushes pass."""
        self._gate.release()
        self._wake()
