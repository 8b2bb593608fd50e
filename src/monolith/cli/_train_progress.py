"""What a person sees of a command: how far training is, and the rows that are predicted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from monolith.hook import Hook
from monolith.hooks.progress import ProgressHook

if TYPE_CHECKING:
    from monolith.hook import HookedSession, StepContext
    from monolith.observe.progress import Progress

__all__ = ["PredictionProgress", "progress_hooks"]


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
    """Returns hooks that show the progress of training, and its last state while servers are still up."""
    return [ProgressHook(bar), _LastState(bar)]


class _LastState(Hook):
    """Closes the bar with the session, as the number of rows comes from servers that end with the job."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Shows the last state."""
        self._bar.close()
