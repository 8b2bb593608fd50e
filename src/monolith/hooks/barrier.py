"""How sessions meet at a barrier: workers wait there, and a save of the chief waits for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.cluster.barrier import BarrierAlreadyPlacedError, wait_until_barrier_removed
from monolith.hook import Hook
from monolith.hooks.saver_listener import SaverListener

if TYPE_CHECKING:
    from monolith.cluster.barrier import Barrier
    from monolith.hook import HookedSession, StepContext

__all__ = ["SAVE_ACTION", "BarrierHook", "BarrierSaverListener"]

_log = logging.getLogger(__name__)

SAVE_ACTION = "Save"


class BarrierHook(Hook):
    """Makes a worker wait before its next step while the barrier stands. The chief's hook does nothing.

    Args:
        index: Which worker; 0 is the chief.
        barrier: Where to wait.
    """

    def __init__(self, index: int, barrier: Barrier) -> None:
        if not 0 <= index < barrier.capacity:
            raise ValueError(f"BarrierHook: index must be in [0, {barrier.capacity}), got {index}")
        self._index = index
        self._barrier = barrier

    def before_run(self, context: StepContext) -> None:
        """Waits; a stop of the session ends the wait."""
        if self._index > 0 and self._barrier.is_barrier_placed():
            wait_until_barrier_removed(self._barrier, self._index, give_up=lambda: context.stop_requested)


class BarrierSaverListener(SaverListener):
    """Guards a save of the chief: workers wait at the barrier from before it until after it, failed or not.

    A worker that does not come in time (it may wait for data) is logged and not waited for. A barrier that stood
    before, as after StopTraining, is left standing.

    Args:
        barrier: Where the workers wait.
        max_pending_seconds: How long to wait for them.
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
            _log.info("saving at step %d behind a barrier that stands already", global_step_value)
        missing = self._barrier.wait_blocked(self._max_pending_seconds)
        if missing:
            _log.warning(
                "saving at step %d without workers %s, which did not come to the barrier within %g s",
                global_step_value,
                missing,
                self._max_pending_seconds,
            )

    def after_save(self, session: HookedSession, global_step_value: int) -> None:  # noqa: ARG002 - a listener's signature
        """Lets the workers go on."""
        if self._placed:
            self._placed = False
            self._barrier.remove_barrier()
