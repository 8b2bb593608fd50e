"""Timers of periodic actions, and the tide: a daily off-peak window in UTC, in which cheap machines are available.

A window is [start, end) in hours and minutes. It may cross midnight (22:00 to 06:00), and one whose start is its end is
always open.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict

from monolith.clock import SystemClock
from monolith.hook import Hook

if TYPE_CHECKING:
    from typing import Unpack

    from monolith.clock import Clock
    from monolith.hook import StepContext


_log = logging.getLogger(__name__)


class TideConfig(TypedDict, total=False):
    """A window as the flat options of a training config: all four of them, or none."""

    tide_start_hour: int | None
    tide_start_minute: int | None
    tide_end_hour: int | None
    tide_end_minute: int | None


def before(hour1: int, minute1: int, hour2: int, minute2: int) -> bool:
    """Returns whether the first time of day comes before the second."""
    return (hour1, minute1) < (hour2, minute2)


def tide_available_now(
    start_hour: int, start_minute: int, end_hour: int, end_minute: int, *, clock: Clock | None = None
) -> bool:
    """Returns whether the current time, in UTC, is within a window.

    >>> from monolith.testing import FakeClock
    >>> tide_available_now(22, 0, 6, 0, clock=FakeClock(now=23 * 3600))
    True
    >>> tide_available_now(22, 0, 6, 0, clock=FakeClock(now=12 * 3600))
    False
    """
    return TideWindow(start_hour, start_minute, end_hour, end_minute).is_open(clock or SystemClock())


@dataclass(frozen=True, slots=True)
class TideWindow:
    """A daily window [start, end) in UTC."""

    start_hour: int
    start_minute: int
    end_hour: int
    end_minute: int

    def __post_init__(self) -> None:
        for hour, minute in ((self.start_hour, self.start_minute), (self.end_hour, self.end_minute)):
            if not (0 <= hour <= 23 and 0 <= minute <= 59):
                raise ValueError(f"tide window: expected a time of day from 00:00 to 23:59, got {hour}:{minute:02}")

    @classmethod
    def of(cls, options: TideConfig) -> TideWindow | None:
        """Returns the window of flat options, or None if none of them is set.

        Raises:
            ValueError: Some are set and some are not.
        """
        names = list(TideConfig.__annotations__)
        if unknown := sorted(set(options) - set(names)):
            raise TypeError(f"tide window: unknown options {unknown}; known are {names}")
        values = [value for name in names if isinstance(value := options.get(name), int)]
        if values and len(values) < len(names):
            missing = [name for name in names if options.get(name) is None]
            raise ValueError(f"tide window: give all of {names}, or none; missing {missing}")
        return cls(*values) if values else None

    def is_open(self, clock: Clock) -> bool:
        """Returns whether the current time is within the window."""
        now = datetime.fromtimestamp(clock.now(), UTC)
        start, end = (self.start_hour, self.start_minute), (self.end_hour, self.end_minute)
        started, ended = not before(now.hour, now.minute, *start), not before(now.hour, now.minute, *end)
        if before(*start, *end):
            return started and not ended
        return start == end or started or not ended

    def __str__(self) -> str:
        return f"{self.start_hour:02}:{self.start_minute:02}-{self.end_hour:02}:{self.end_minute:02} UTC"


class TideStoppingHook(Hook):
    """Ends training when the tide window closes.

    Args:
        clock: Gives the time of day.
        tide: The window; without one the hook does nothing.
    """

    def __init__(self, *, clock: Clock | None = None, **tide: Unpack[TideConfig]) -> None:
        self._window = TideWindow.of(tide)
        self._clock = clock or SystemClock()

    def before_run(self, context: StepContext) -> None:
        """Requests a stop after this step if the window is closed."""
        if self._window is not None and not self._window.is_open(self._clock):
            _log.info("tide window %s is closed: stopping at step %d", self._window, context.global_step)
            context.request_stop()


class SecondOrStepTimer:
    """Decides at which steps an action is due. The first check is always due. Not thread-safe.

    Args:
        every_secs: Seconds from one action to the next.
        every_steps: Or steps; exactly one of the two is given.
        clock: Measures the seconds.
    """

    def __init__(
        self, every_secs: float | None = None, every_steps: int | None = None, *, clock: Clock | None = None
    ) -> None:
        if every_secs is None and every_steps is None:
            raise ValueError("Either every_secs or every_steps should be provided.")
        if every_secs is not None and every_steps is not None:
            raise ValueError("Can not provide both every_secs and every_steps.")
        for name, value in (("every_secs", every_secs), ("every_steps", every_steps)):
            if value is not None and not value > 0:
                raise ValueError(f"timer: {name} must be > 0, got {value!r}")
        self._every_secs = every_secs
        self._every_steps = every_steps
        self._clock = clock or SystemClock()
        self._last_step: int | None = None
        self._last_time = 0.0

    def reset(self) -> None:
        """Clears the last action: the timer is due immediately."""
        self._last_step = None

    def last_triggered_step(self) -> int | None:
        """Returns the step of the last action."""
        return self._last_step

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether the action is due at this step; never twice at one step."""
        if self._last_step is None:
            return True
        if step == self._last_step:
            return False
        if self._every_secs is not None:
            return self._passed(self._every_secs)
        return self._every_steps is not None and step >= self._last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records that the action was done at this step.

        Returns:
            Seconds and steps since the last action; None and None for the first one.
        """
        now = self._clock.monotonic()
        passed = (None, None) if self._last_step is None else (now - self._last_time, step - self._last_step)
        self._last_step, self._last_time = step, now
        return passed

    def _passed(self, seconds: float) -> bool:
        return self._clock.monotonic() >= self._last_time + seconds


class SecondOrStepTimerWithTideSetting(SecondOrStepTimer):
    """A timer with another interval outside the tide window, which can be disabled and triggered manually.

    Args:
        every_secs: Seconds from one action to the next.
        every_steps: Or steps; exactly one of the two is given.
        tide_every_secs: Seconds that replace both while the window is closed; None: no change.
        clock: Measures the seconds, and gives the time of day.
        tide: The window.
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: int | None = None,
        *,
        tide_every_secs: float | None = None,
        clock: Clock | None = None,
        **tide: Unpack[TideConfig],
    ) -> None:
        super().__init__(every_secs, every_steps, clock=clock)
        self._window = TideWindow.of(tide)
        if tide_every_secs is not None and self._window is None:
            raise ValueError(
                "timer: tide_every_secs is the interval outside a tide window; give its tide_... options too"
            )
        if tide_every_secs is not None and not tide_every_secs > 0:
            raise ValueError(f"timer: tide_every_secs must be > 0, got {tide_every_secs!r}")
        self._tide_every_secs = tide_every_secs
        self.enabled = True
        """Whether the timer is enabled."""
        self._due = False

    def enable(self) -> None:
        """Enables the timer."""
        self.enabled = True

    def disable(self) -> None:
        """Disables the timer until `enable`."""
        self.enabled = False

    def trigger_next(self) -> None:
        """Makes the next check due, whatever the interval; only once, and only while enabled."""
        self._due = True

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether the action is due at this step; never twice at one step, never while disabled."""
        if not self.enabled:
            return False
        if self._due and step != self.last_triggered_step():
            return True
        tide_out = self._window is not None and not self._window.is_open(self._clock)
        last_step = self.last_triggered_step()
        if self._tide_every_secs is None or not tide_out or last_step is None:
            return super().should_trigger_for_step(step)
        return step != last_step and self._passed(self._tide_every_secs)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records that the action was done at this step, and clears `trigger_next`."""
        self._due = False
        return super().update_last_triggered_step(step)
