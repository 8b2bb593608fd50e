"""The tide: a daily off-peak window, in UTC, in which cheap machines are available; training stops when it closes.

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

__all__ = ["TideConfig", "TideStoppingHook", "TideWindow", "before", "tide_available_now"]

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
