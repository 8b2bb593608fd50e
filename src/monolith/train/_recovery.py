"""Starting over in place after another process went away, so often and no more."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.errors import OpError
from monolith.train.preemption import is_preemption

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.train.job_part import JobPart
    from monolith.train.session import Session

__all__ = ["MOST_ATTEMPTS", "Recovery"]

_log = logging.getLogger(__name__)

MOST_ATTEMPTS = 20
"""How often a session is rebuilt from one checkpoint: about seven minutes for an unreachable peer."""
_LONGEST_WAIT_SECONDS = 30.0


class Recovery:
    """Rebuilds a session after each failure, with growing backoff while it makes no progress.

    A run that keeps training the same steps without reaching its next checkpoint ends with an error, so that its
    supervisor notices. In a job there is no such limit: it waits for the other processes and looks up their new
    addresses until it is requested to stop.

    Args:
        session: The training session.
        clock: Measures the waits.
        job: The part of this process in a job; None: a single process.
    """

    def __init__(self, session: Session, *, clock: Clock, job: JobPart | None = None) -> None:
        self._session = session
        self._clock = clock
        self._job = job
        self._refused_at: tuple[int, int] | None = None
        self._failures_in_a_row, self._failed_at = 0, -1
        self._restored_at, self._attempts = session.global_step, 0

    def is_first_refusal(self) -> bool:
        """Returns whether this is the first refusal at this step: one may be caused by other processes, two are not."""
        generation = 0 if self._job is None else self._job.client.state.generation
        at = (self._session.global_step, generation)
        is_first, self._refused_at = at != self._refused_at, at
        return is_first

    def start_over(self, error: OpError) -> None:
        """Rebuilds the session from its last checkpoint.

        Raises:
            OpError: of the class of the last failure, if that happened too often without a newer checkpoint.
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
            if self._attempts == MOST_ATTEMPTS and self._job is None:
                raise type(error)(
                    f"session: started over {MOST_ATTEMPTS} times from step {self._restored_at} without getting to"
                    f" another checkpoint; the last failure was: {error}"
                ) from error
            self._attempts += 1
            if waits:
                pause = self._clock.sleep if self._job is None else self._job.pause
                pause(min(2.0 ** (waits - 1), _LONGEST_WAIT_SECONDS))
            try:
                if self._job is not None:
                    self._job.find_servers()
                self._session.rebuild()
            except OpError as failure:
                if not is_preemption(failure):
                    raise
                error = failure
                waits += 1
                _log.warning("session: could not be made again (%s); trying once more", failure)
            else:
                return
