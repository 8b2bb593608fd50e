"""Ends training at a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.hook import Hook, stop_together

if TYPE_CHECKING:
    from monolith.hook import HookedSession, StepContext

__all__ = ["StopAtStep"]


class StopAtStep(Hook):
    """Stops a session after some steps.

    Args:
        steps: Number of steps after the start of the first session; None: no such limit.
        max_steps: Global step to stop at; None: no such limit.
    """

    def __init__(self, *, steps: int | None = None, max_steps: int | None = None) -> None:
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value < 0:
                raise ValueError(f"{name} must be >= 0 or None, got {value}")
        self.steps = steps
        self.max_steps = max_steps
        self._last_step: int | None = None

    def after_create_session(self, session: HookedSession) -> None:
        """Finds the last step, once: a session that is rebuilt has the same one."""
        if self._last_step is None:
            limits = [] if self.steps is None else [session.global_step + self.steps]
            limits += [] if self.max_steps is None else [self.max_steps]
            self._last_step = min(limits, default=None)
        self._stop_if_reached(session)

    def after_run(self, context: StepContext) -> None:
        """Stops at the last step."""
        self._stop_if_reached(context.session)

    def _stop_if_reached(self, session: HookedSession) -> None:
        if self._last_step is not None and session.global_step >= self._last_step:
            stop_together(session)  # every rank of a synchronous run has the same step
