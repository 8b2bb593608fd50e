"""Interactive progress of a run."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.hook import Hook
from monolith.metrics import ExactAUC

if TYPE_CHECKING:
    from monolith.hook import HookedSession, StepContext
    from monolith.observe import Progress

_RECENT_STEPS = 100
_SECONDS_BETWEEN_AUCS = 1.0


class ProgressHook(Hook):
    """Shows step, examples per second, loss, AUC of the last steps, rows of the tables and expired rows.

    Args:
        bar: The progress bar; its creator closes it.
        steps: Number of steps to come, if available: the bar then ends there, or at its own total if that is less.
    """

    def __init__(self, bar: Progress, *, steps: int | None = None) -> None:
        self._bar = bar
        self._steps = steps
        self._recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=_RECENT_STEPS)
        self._auc, self._auc_at = float("nan"), 0.0
        self._examples, self._since = 0, time.monotonic()
        self._session: HookedSession | None = None
        self._expired = 0

    def after_create_session(self, session: HookedSession) -> None:
        """Starts at the current step of the run."""
        self._session = session
        self._bar.done = session.global_step
        if self._steps is not None:
            last = session.global_step + self._steps
            self._bar.total = last if self._bar.total is None else min(last, self._bar.total)
            self._steps = None  # a rebuilt session runs to the same step
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
        fields["rows"] = self._num_rows
        if self._expired:
            fields["expired"] = self._expired
        self._bar.update(context.global_step - self._bar.done, **fields)

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
            predictions = torch.cat([predicted.flatten() for predicted, _ in self._recent]).float().cpu()
            labels = torch.cat([label.flatten() for _, label in self._recent]).float().cpu()
            is_good = predictions.shape == labels.shape and bool(((labels == 0) | (labels == 1)).all())
            if is_good and bool(torch.isfinite(predictions).all()):
                metric = ExactAUC()
                metric.update(predictions, labels)
                self._auc = metric.compute()
        return self._auc

    def _num_rows(self) -> int:
        stores = {} if self._session is None else self._session.state.stores
        stats = [store.stats() for store in stores.values()]
        self._expired = sum(table_stats.evicted for table_stats in stats)
        return sum(table_stats.rows for table_stats in stats)
