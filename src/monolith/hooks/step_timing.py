"""Periodic reports of the training speed in the log: steps and examples per second, with the loss."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.hook import Hook
from monolith.hooks.last_loss import last_loss
from monolith.hooks.timer import SecondOrStepTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext

__all__ = ["StepCounterHook", "StepRate"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepRate:
    """Measurements from one report to the next."""

    global_step: int
    steps_per_second: float
    """Of the job: other workers move the global step too."""
    examples_per_second: float | None
    """Of this worker; None where its steps have no results."""
    loss: float | None
    """Of the last step; None where it computed none."""

    def __str__(self) -> str:
        parts = [f"step {self.global_step}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.6g}")
        parts.append(f"{self.steps_per_second:.4g} steps/s")
        if self.examples_per_second is not None:
            parts.append(f"{self.examples_per_second:.4g} examples/s")
        return ", ".join(parts)


class StepCounterHook(Hook):
    """Reports the speed of training. The first report comes one interval after the session was created.

    Args:
        every_steps: Steps from one report to the next; 100 unless `every_secs` is given.
        every_secs: Or seconds.
        report: Receives each report; by default a line of the log.
        clock: Measures the seconds.
    """

    def __init__(
        self,
        every_steps: int | None = None,
        every_secs: float | None = None,
        *,
        report: Callable[[StepRate], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if every_steps is None and every_secs is None:
            every_steps = 100
        self._timer = SecondOrStepTimer(every_secs, every_steps, clock=clock or SystemClock())
        self._report = report or _write_line
        self._num_examples = 0
        self._counts_examples = False

    def after_create_session(self, session: HookedSession) -> None:
        """Starts counting."""
        self._timer.reset()
        self._timer.update_last_triggered_step(session.global_step)
        self._num_examples = 0

    def after_run(self, context: StepContext) -> None:
        """Counts a step, and reports when it is due."""
        last = context.session.last
        if last is not None:
            self._counts_examples = True
            self._num_examples += last.num_examples
        step = context.global_step
        if not self._timer.should_trigger_for_step(step):
            return
        seconds, steps = self._timer.update_last_triggered_step(step)
        num_examples, self._num_examples = self._num_examples, 0
        if not seconds or steps is None:
            return  # no rate over zero seconds
        rate = num_examples / seconds if self._counts_examples else None
        self._report(StepRate(step, steps / seconds, rate, last_loss(context.session)))


def _write_line(rate: StepRate) -> None:
    _log.info("%s", rate)
