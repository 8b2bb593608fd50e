"""Lets workers join one after another: a worker starts once the job has made enough steps."""

from __future__ import annotations

import enum
import logging
import math
import random
from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.hook import Hook
from monolith.hooks.timer import TideWindow

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from monolith.clock import Clock
    from monolith.hook import StepContext
    from monolith.hooks.timer import TideConfig

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
LOG_EVERY_SECONDS = 30.0
MAX_EXTRA_WAIT_SECONDS = 600.0
"""The starts of workers whose wait times out are spread over ten minutes."""


def slow_start_step(slow_start_steps: int, worker_index: int) -> int:
    """Returns the step at which a worker joins: ``int(slow_start_steps * ln(1 + index))``; the chief joins at 0."""
    return int(slow_start_steps * math.log1p(worker_index))


class SlowStart:
    """Decides when a worker may begin, without a clock and without waiting.

    Args:
        wait_until_step: Begin once the job has made this many steps.
        patience_seconds: Or when this time has passed since the second step of the job.
    """

    class Decision(enum.Enum):
        """What to do now."""

        WAIT = enum.auto()
        BEGIN = enum.auto()
        GIVE_UP = enum.auto()
        """Begin without having reached the step."""

    def __init__(self, wait_until_step: int, patience_seconds: float) -> None:
        self._wait_until_step = wait_until_step
        self._patience_seconds = patience_seconds
        self._waiting_since: float | None = None

    def decide(self, global_step: int, now: float) -> Decision:
        """Returns the decision for the current global step and time."""
        if global_step >= self._wait_until_step:
            return self.Decision.BEGIN
        # Before its second step the job is still starting up, which must not count as waiting time.
        if global_step > 1 and self._waiting_since is None:
            self._waiting_since = now
        if self._waiting_since is not None and now - self._waiting_since > self._patience_seconds:
            return self.Decision.GIVE_UP
        return self.Decision.WAIT


class CustomGlobalStepWaiterHook(Hook):
    """Delays the first step of a worker until the job has made `wait_until_step` steps.

    It polls every half second, and not forever: `max_non_tide_wait_minute` after the second step of the job, plus a
    random delay of up to ten minutes, the worker begins anyway. Outside the tide window, where there is one, it
    requests a stop instead of waiting.

    Args:
        wait_until_step: 0 or less does not wait.
        max_non_tide_wait_minute: Maximum wait in minutes.
        extra_wait_seconds: Returns the random delay in seconds; by default uniform from 0 to 600.
        clock: Measures the wait.
        global_step: Step of the job; None: that of the session, which only its own steps may move.
        tide: The window.
    """

    def __init__(
        self,
        wait_until_step: int,
        *,
        max_non_tide_wait_minute: float = 10,
        extra_wait_seconds: Callable[[], float] | None = None,
        clock: Clock | None = None,
        global_step: Callable[[], int] | None = None,
        **tide: Unpack[TideConfig],
    ) -> None:
        self._window = TideWindow.of(tide)
        self._clock = clock or SystemClock()
        extra = random.uniform(0, MAX_EXTRA_WAIT_SECONDS) if extra_wait_seconds is None else extra_wait_seconds()  # noqa: S311 - spreads load, guards nothing
        self._slow_start = SlowStart(wait_until_step, max_non_tide_wait_minute * 60 + extra)
        self._wait_until_step = wait_until_step
        self._global_step = global_step
        self._worker_is_started = wait_until_step <= 0

    def before_run(self, context: StepContext) -> None:
        """Blocks at the first step only."""
        next_line = self._clock.monotonic()
        while not self._worker_is_started and not context.stop_requested:
            if self._window is not None and not self._window.is_open(self._clock):
                _log.info("tide window %s is closed: stopping instead of waiting to start", self._window)
                context.request_stop()
                return
            step = context.global_step if self._global_step is None else self._global_step()
            now = self._clock.monotonic()
            decision = self._slow_start.decide(step, now)
            if decision is SlowStart.Decision.WAIT:
                if now >= next_line:
                    _log.info("waiting for step %d before training; the job is at %d", self._wait_until_step, step)
                    next_line = now + LOG_EVERY_SECONDS
                self._clock.sleep(POLL_SECONDS)
                continue
            if decision is SlowStart.Decision.GIVE_UP:
                _log.warning("starting at step %d without waiting for step %d any longer", step, self._wait_until_step)
            self._worker_is_started = True
