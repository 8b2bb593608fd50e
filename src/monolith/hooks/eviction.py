"""Expired rows leave the tables while training goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.hook import Hook
from monolith.hooks.timer import SecondOrStepTimer

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext

__all__ = ["EvictionHook", "evict_expired"]

_log = logging.getLogger(__name__)


def evict_expired(session: HookedSession) -> int:
    """Removes expired rows from the tables of the session's model, between two steps; returns how many there were."""
    session.settle()  # what was postponed is applied, and what was read ahead is read again
    return sum(each.evict() for each in session.state.embeddings.values())


class EvictionHook(Hook):
    """Removes expired rows after every so many steps or seconds, by the newest time that was trained on.

    By steps, it is a function of the global step alone, so a resumed run removes what an uninterrupted one does. It
    belongs before the saver: a checkpoint of the same step then holds what is left. Updates that were postponed are
    applied first, and rows that were read ahead are read again.

    Args:
        every_steps: After each step that this divides.
        every_secs: Or seconds from one time to the next, counted from the start of the session.
        clock: Measures the seconds.
        timer: Says when it is due, instead of one with these seconds.

    Raises:
        ValueError: both or none of the intervals, or one that is not positive.
    """

    def __init__(
        self,
        *,
        every_steps: int | None = None,
        every_secs: float | None = None,
        clock: Clock | None = None,
        timer: SecondOrStepTimer | None = None,
    ) -> None:
        self._every_steps = every_steps
        self._timer = SecondOrStepTimer(every_secs, every_steps, clock=clock) if timer is None else timer

    def after_create_session(self, session: HookedSession) -> None:
        """Begins to count the seconds."""
        self._timer.update_last_triggered_step(session.global_step)

    def after_run(self, context: StepContext) -> None:
        """Removes rows when it is time."""
        step = context.global_step
        if self._every_steps is not None:
            is_due = step % self._every_steps == 0
        else:
            is_due = self._timer.should_trigger_for_step(step)
        if is_due:
            self._timer.update_last_triggered_step(step)
            _log.info("step %d: %d expired rows were removed", step, evict_expired(context.session))
