"""Hooks for the barrier: workers wait there, and a save of the chief waits for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.cluster import BarrierAlreadyPlacedError, wait_until_barrier_removed
from monolith.hook import Hook
from monolith.hooks.listeners import SaverListener

if TYPE_CHECKING:
    from monolith.cluster import Barrier
    from monolith.hook import HookedSession, StepContext

_log = logging.getLogger(__name__)

SAVE_ACTION = "Save"


class BarrierHook(Hook):
    """Blocks a worker before its next step while the barrier is placed. The chief's hook does nothing.

    Args:
        index: Index of the worker; 0 is the chief.
        barrier: The barrier.
    """

    def __init__(self, index: int, barrier: Barrier) -> None:
        if not 0 <= index < barrier.capacity:
            raise ValueError(f"BarrierHook: index must be in [0, {barrier.capacity}), got {index}")
        self._index = index
        self._barrier = barrier

    def before_run(self, context: StepContext) -> None:
        """Blocks while the barrier is placed; a stop of the session ends the wait."""
        if self._index > 0 and self._barrier.is_barrier_placed():
            wait_until_barrier_removed(self._barrier, self._index, give_up=lambda: context.stop_requested)


class BarrierSaverListener(SaverListener):
    """Guards a save of the chief: workers wait at the barrier until the save is over, failed or not.

    A worker that does not reach the barrier in time (it may wait for data) is logged and not waited for. A barrier that
    was placed before, as after StopTraining, stays placed.

    Args:
        barrier: The barrier of the workers.
        max_pending_seconds: How long to wait for the workers.
    """

    def __init__(self, barrier: Barrier, *, max_pending_seconds: float = 30.0) -> None:
        self._barrier = barrier
        self._max_pending_seconds = max_pending_seconds
        self._placed = False

    def before_save(self, session: HookedSession, global_step_value: int) -> None:  # noqa: ARG002 - a listener's signature
        """Places the barrier and waits for the workers."""
        try:
            self._barrier.place_barrier(SAVE_ACTION)
            self._placed = True
        except BarrierAlreadyPlacedError:
            _log.info("saving at step %d with a barrier that is already placed", global_step_value)
        missing = self._barrier.wait_blocked(self._max_pending_seconds)
        if missing:
            _log.warning(
                "saving at step %d without workers %s, which did not come to the barrier within %g s",
                global_step_value,
                missing,
                self._max_pending_seconds,
            )

    def after_save(self, session: HookedSession, global_step_value: int) -> None:  # noqa: ARG002 - a listener's signature
        """Removes the barrier, so that the workers resume."""
        if self._placed:
            self._placed = False
            self._barrier.remove_barrier()
