"""The gate of an owner in Python, which tells the server when pushes that were turned away may come again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith import _core

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WakingGate"]


class WakingGate:
    """`_core.PushGate`, for pushes that Python applies. Any thread may call it.

    Args:
        wake: Has the server try calls again that were answered "not now".
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._gate = _core.PushGate()
        self._wake = wake

    def enter(self, worker: int, seq: int, applied: int) -> bool:
        """Whether a push may pass now; then `leave` follows."""
        return self._gate.enter(worker, seq, applied)

    def leave(self) -> None:
        """The push is done."""
        self._gate.leave()

    def hold(self, seconds: float) -> bool:
        """Returns when no push is inside; others wait until `release`, or until the seconds are over. False: one is."""
        return self._gate.hold(seconds)

    def allow(self, limits: dict[int, int]) -> None:
        """Worker -> number of the batch up to which its pushes may pass meanwhile."""
        self._gate.allow(limits)
        self._wake()

    def release(self) -> None:
        """All may pass."""
        self._gate.release()
        self._wake()
