"""What a person sees of a run: the progress of its steps, and an end by Ctrl-C that loses nothing."""

from __future__ import annotations

import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.hook import Hook
from monolith.metrics import ExactAUC

if TYPE_CHECKING:
    from types import FrameType

    from monolith.cli._progress import Progress
    from monolith.hook import HookedSession, StepContext

__all__ = ["PredictionProgress", "ProgressHook", "StopOnSignal"]

_RECENT_STEPS = 100
_SECONDS_BETWEEN_AUCS = 1.0


class ProgressHook(Hook):
    """Shows step, examples per second, loss, AUC of the last steps and size of the tables."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=_RECENT_STEPS)
        self._auc, self._auc_at = float("nan"), 0.0
        self._examples, self._since = 0, time.monotonic()
        self._session: HookedSession | None = None

    def after_create_session(self, session: HookedSession) -> None:
        """Begins where the run is."""
        self._session = session
        self._bar.done = session.global_step
        self._examples, self._since = 0, time.monotonic()

    def after_run(self, context: StepContext) -> None:
        """Counts a step."""
        last = context.session.last
        if last is None:
            return
        self._examples += last.num_examples
        fields: dict[str, Any] = {"examples_per_second": self._examples_per_second}
        loss = last.loss
        if loss is not None:
            fields["loss"] = lambda: float(loss)
        if isinstance(last.predictions, Tensor) and isinstance(last.label, Tensor):
            self._recent.append((last.predictions, last.label))
            fields["AUC"] = self._recent_auc
        self._bar.update(context.global_step - self._bar.done, **fields, rows=self._num_rows)

    def _examples_per_second(self) -> float:
        now = time.monotonic()
        rate = self._examples / max(now - self._since, 1e-9)
        if now - self._since > 5.0:
            self._examples, self._since = 0, now
        return rate

    def _recent_auc(self) -> float:
        now = time.monotonic()
        if now - self._auc_at >= _SECONDS_BETWEEN_AUCS:
            self._auc_at = now
            predictions = torch.cat([each.flatten() for each, _ in self._recent]).float().cpu()
            labels = torch.cat([each.flatten() for _, each in self._recent]).float().cpu()
            is_good = predictions.shape == labels.shape and bool(((labels == 0) | (labels == 1)).all())
            if is_good and bool(torch.isfinite(predictions).all()):
                metric = ExactAUC()
                metric.update(predictions, labels)
                self._auc = metric.compute()
        return self._auc

    def _num_rows(self) -> int:
        embeddings = {} if self._session is None else self._session.state.embeddings
        return sum(each.num_rows for each in embeddings.values())


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
