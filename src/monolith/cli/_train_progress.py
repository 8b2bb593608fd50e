"""What a person sees of a command: the rows it predicts, and an end by Ctrl-C that loses nothing."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

from monolith.hook import Hook
from monolith.hooks.progress import ProgressHook

if TYPE_CHECKING:
    from types import FrameType

    from monolith.hook import HookedSession, StepContext
    from monolith.observe.progress import Progress

__all__ = ["PredictionProgress", "StopOnSignal", "progress_hooks"]


class PredictionProgress(Hook):
    """Shows how many rows were predicted, and how fast."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._since = time.monotonic()

    def after_run(self, context: StepContext) -> None:
        """Counts the rows of a batch."""
        last = context.session.last
        self._bar.update(0 if last is None else last.num_examples, rows_per_second=self._rows_per_second)

    def _rows_per_second(self) -> float:
        return self._bar.done / max(time.monotonic() - self._since, 1e-9)


def progress_hooks(bar: Progress) -> list[Hook]:
    """Show how far training is, and its last state while what is shown can still be asked for."""
    return [ProgressHook(bar), _LastState(bar)]


class _LastState(Hook):
    """Closes the bar with the session: the number of rows is asked of servers that end with the job."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Shows the last state."""
        self._bar.close()


class StopOnSignal(Hook):
    """Ends training after the step that runs, at the first SIGINT or SIGTERM; a second SIGINT interrupts the step."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._session: HookedSession | None = None
        self._before: dict[int, Any] = {}
        self.received: signal.Signals | None = None
        """What has come."""

    def begin(self) -> None:
        """Begins to listen."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)

    def after_create_session(self, session: HookedSession) -> None:
        """Knows whom to stop; one that was asked before it was ready is stopped at once."""
        self._session = session
        if self.received is not None:
            session.request_stop()

    def restore(self) -> None:
        """Gives signals back to those who had them."""
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
