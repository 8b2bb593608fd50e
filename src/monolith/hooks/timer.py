"""Timers of periodic actions: every N seconds or steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.hooks.tide import TideWindow

if TYPE_CHECKING:
    from typing import Unpack

    from monolith.clock import Clock
    from monolith.hooks.tide import TideConfig

__all__ = ["SecondOrStepTimer", "SecondOrStepTimerWithTideSetting"]


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
        self._enabled = True
        self._due = False

    @property
    def enabled(self) -> bool:
        """Whether the timer is enabled."""
        return self._enabled

    def enable(self) -> None:
        """Enables the timer."""
        self._enabled = True

    def disable(self) -> None:
        """Disables the timer until `enable`."""
        self._enabled = False

    def trigger_next(self) -> None:
        """Makes the next check due, whatever the interval; only once, and only while enabled."""
        self._due = True

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether the action is due at this step; never twice at one step, never while disabled."""
        if not self._enabled:
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
