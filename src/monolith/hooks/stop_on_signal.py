"""A graceful stop by Ctrl-C."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from monolith.hook import Hook

if TYPE_CHECKING:
    from types import FrameType

    from monolith.hook import HookedSession
    from monolith.observe.progress import Progress

__all__ = ["StopOnSignal"]


class StopOnSignal(Hook):
    """Ends training after the current step, at the first SIGINT or SIGTERM; a second SIGINT interrupts the step."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._session: HookedSession | None = None
        self._before: dict[int, Any] = {}
        self.received: signal.Signals | None = None
        """The first signal received."""

    def begin(self) -> None:
        """Installs the signal handlers."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)

    def after_create_session(self, session: HookedSession) -> None:
        """Attaches to the session. A signal that was received before stops it immediately."""
        self._session = session
        if self.received is not None:
            session.request_stop()

    def restore(self) -> None:
        """Restores the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's signature
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        if self._session is not None:
            self._session.request_stop()
        self._bar.write(f"{self.received.name}: stopping after this step and saving; once more to interrupt the step")
