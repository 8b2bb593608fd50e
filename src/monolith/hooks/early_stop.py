"""Ends training when a value, such as the loss of held-out data, stops improving."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Literal

from monolith.hook import Hook
from monolith.hooks.timer import SecondOrStepTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.hook import HookedSession, StepContext

__all__ = ["EarlyStop", "EarlyStoppingHook"]

_log = logging.getLogger(__name__)


class EarlyStop:
    """Keeps the best value and decides when to stop waiting for a better one.

    Args:
        patience_steps: Steps without a better value after which to stop.
        better: Whether lower or higher values are better.
        min_delta: By how much a value must be better to count.

    >>> stop = EarlyStop(patience_steps=20)
    >>> [stop.update(step, loss) for step, loss in [(0, 0.7), (10, 0.6), (20, 0.65), (30, 0.61)]]
    [False, False, False, True]
    >>> stop.best, stop.best_step
    (0.6, 10)
    """

    def __init__(
        self, *, patience_steps: int, better: Literal["lower", "higher"] = "lower", min_delta: float = 0.0
    ) -> None:
        if patience_steps < 1:
            raise ValueError(f"EarlyStop: patience_steps must be >= 1, got {patience_steps}")
        if better not in {"lower", "higher"}:
            raise ValueError(f"EarlyStop: better must be 'lower' or 'higher', got {better!r}")
        if not 0 <= min_delta < math.inf:
            raise ValueError(f"EarlyStop: min_delta must be finite and >= 0, got {min_delta}")
        self._patience_steps = patience_steps
        self._sign = 1.0 if better == "lower" else -1.0
        self._min_delta = min_delta
        self._first_step: int | None = None
        self.best: float | None = None
        """The best value so far."""
        self.best_step: int | None = None
        """Step of the best value."""

    def update(self, step: int, value: float) -> bool:
        """Adds the value of a step and returns whether to stop. NaN is never better."""
        if self._first_step is None:
            self._first_step = step
        if not math.isnan(value) and (self.best is None or self._sign * (self.best - value) > self._min_delta):
            self.best, self.best_step = value, step
            return False
        since = self._first_step if self.best_step is None else self.best_step
        return step - since >= self._patience_steps


class EarlyStoppingHook(Hook):
    """Evaluates a value periodically, and requests a stop when it stops improving.

    Args:
        value: Computes the value, such as an evaluation; None: not yet.
        stop: When to stop.
        every_steps: Steps from one evaluation to the next.
    """

    def __init__(
        self, value: Callable[[HookedSession], float | None], stop: EarlyStop, *, every_steps: int = 1000
    ) -> None:
        self._value = value
        self._stop = stop
        self._timer = SecondOrStepTimer(every_steps=every_steps)

    def after_create_session(self, session: HookedSession) -> None:
        """Starts counting the steps to the first evaluation."""
        self._timer.reset()
        self._timer.update_last_triggered_step(session.global_step)

    def after_run(self, context: StepContext) -> None:
        """Evaluates when the timer is due."""
        step = context.global_step
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        value = self._value(context.session)
        if value is not None and self._stop.update(step, float(value)):
            _log.info("stopping at step %d: no better than %s at step %s", step, self._stop.best, self._stop.best_step)
            context.request_stop()
