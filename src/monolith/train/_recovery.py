"""Starting over in place after another process went away, so often and no more."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.errors import OpError
from monolith.train.preemption import is_preemption

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.train.session import Session

__all__ = ["MOST_ATTEMPTS", "Recovery"]

_log = logging.getLogger(__name__)

MOST_ATTEMPTS = 20
"""How often a session is made anew from one checkpoint: about seven minutes for a peer that stays away."""
_LONGEST_WAIT_SECONDS = 30.0


class Recovery:
    """Makes a session anew after each failure, with longer and longer waits while it comes no further.

    A run that trains the same steps again and again, and never gets to its next checkpoint, is ended: whoever
    supervises it is to know.

    Args:
        session: The one that trains.
        clock: Measures the waits.
    """

    def __init__(self, session: Session, *, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._failures_in_a_row, self._failed_at = 0, -1
        self._restored_at, self._attempts = session.global_step, 0

    def start_over(self, error: OpError) -> None:
        """Makes the session anew from its last checkpoint.

        Raises:
            OpError: of the class of the last failure, when that was done too often without a newer checkpoint.
        """
        step = self._session.global_step
        self._failures_in_a_row = self._failures_in_a_row + 1 if step == self._failed_at else 0
        self._failed_at = step
        _log.warning("session: step %d failed (%s); starting over in place", step, error)
        self._rebuild(error)
        if self._session.global_step > self._restored_at:
            self._restored_at, self._attempts = self._session.global_step, 0

    def _rebuild(self, error: OpError) -> None:
        waits = self._failures_in_a_row
        while True:
            if self._attempts == MOST_ATTEMPTS:
                raise type(error)(
                    f"session: started over {MOST_ATTEMPTS} times from step {self._restored_at} without getting to"
                    f" another checkpoint; the last failure was: {error}"
                ) from error
            self._attempts += 1
            if waits:
                self._clock.sleep(min(2.0 ** (waits - 1), _LONGEST_WAIT_SECONDS))
            try:
                self._session.rebuild()
            except OpError as failure:
                if not is_preemption(failure):
                    raise
                error = failure
                waits += 1
                _log.warning("session: could not be made again (%s); trying once more", failure)
            else:
                return
