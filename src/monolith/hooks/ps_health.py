"""Pauses training while a parameter server exceeds its memory limit, before the system kills the server."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from monolith.background import PeriodicThread
from monolith.clock import SystemClock
from monolith.cluster import BarrierAlreadyPlacedError
from monolith.hook import Hook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.clock import Clock
    from monolith.cluster import Barrier
    from monolith.hook import HookedSession, StepContext
    from monolith.ps.client import ServerHealth

_log = logging.getLogger(__name__)

EVERY_SECONDS = 30.0
_AGAIN_SECONDS = 1.0
"""Until the next check while the barrier of another process is placed: a save is over soon."""
_LOOK_SECONDS = 0.2
"""Interval at which a waiting chief polls for a stop request."""


class TellsHealth(Protocol):
    """Servers that report their memory; `monolith.ps.PsCluster` is one."""

    def health(self) -> Sequence[ServerHealth | None]:
        """Returns the memory in use of each server; None for one that does not answer."""


class PsHealthHook(Hook):
    """Queries the memory of the servers every 30 s. While a server is over its limit, workers wait at the barrier.

    An error in the log names the servers and their bytes. Training resumes automatically once all servers are within
    their limits again, because an operator acted or because rows expired. A barrier that another process has placed is
    unchanged. A thread makes the checks, so that they continue while the chief waits for data. Chief only, and the
    first of its hooks.

    Args:
        cluster: The servers.
        barrier: The barrier of the workers.
        every_seconds: Seconds from one check to the next.
        pauses_chief: Whether this hook also blocks its own session; False where a `ServerHook` of the same barrier
            does, which can save meanwhile.
        clock: Measures how long training was paused.
    """

    def __init__(
        self,
        cluster: TellsHealth,
        barrier: Barrier,
        every_seconds: float = EVERY_SECONDS,
        *,
        pauses_chief: bool = True,
        clock: Clock | None = None,
    ) -> None:
        if not every_seconds > 0:
            raise ValueError(f"PsHealthHook: every_seconds must be > 0, got {every_seconds}")
        self._cluster = cluster
        self._barrier = barrier
        self._every_seconds = every_seconds
        self._pauses_chief = pauses_chief
        self._clock = clock or SystemClock()
        self._placed_at: float | None = None
        self._may_run = threading.Event()
        self._may_run.set()
        self._thread: PeriodicThread | None = None

    def after_create_session(self, session: HookedSession) -> None:
        """Starts the thread; a rebuilt session keeps it."""
        if self._thread is None:
            session.on_close(self._stop)
            again = min(_AGAIN_SECONDS, self._every_seconds)
            self._thread = PeriodicThread(
                lambda: None if self.look() else again, every=self._every_seconds, name="ps_health"
            )
            self._thread.start()

    def before_run(self, context: StepContext) -> None:
        """Blocks while a server is over its limit; a stop of the session ends the wait."""
        while self._pauses_chief and not self._may_run.wait(_LOOK_SECONDS):
            if context.stop_requested:
                return

    def look(self) -> bool:
        """Checks once, and places or removes the barrier; False: the check is to be repeated soon."""
        answers = self._cluster.health()
        silent = [index for index, answer in enumerate(answers) if answer is None]
        if silent:
            _log.warning("parameter servers %s do not report their memory usage", silent)
        over = [answer for answer in answers if answer is not None and answer.out_of_memory]
        if over:
            return self._stop_training(over)
        if self._placed_at is not None and not silent:
            self._resume_training()
        return True

    def _stop_training(self, over: Sequence[ServerHealth]) -> bool:
        if self._barrier.is_barrier_placed():
            return self._placed_at is not None
        try:
            self._barrier.place_barrier()
        except BarrierAlreadyPlacedError:
            return False
        self._placed_at = self._clock.monotonic()
        self._may_run.clear()
        _log.error(
            "training paused: %s; it resumes automatically once every server is below its limit. Let rows expire"
            " sooner, give the servers more memory and a higher limit (monolith_default_machine_info_mem_limit), or"
            " restart with more servers",
            ", ".join(
                f"parameter server {server.index} at {server.address} has {server.resident_bytes} bytes in use, more"
                f" than the limit of {server.limit_bytes}"
                for server in over
            ),
        )
        return True

    def _resume_training(self) -> None:
        seconds = self._clock.monotonic() - (self._placed_at or 0.0)
        self._placed_at = None
        self._barrier.remove_barrier()
        self._may_run.set()
        _log.warning("training resumes: after %.0f s all parameter servers are below their memory limit", seconds)

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
        if self._placed_at is not None:
            self._placed_at = None
            self._may_run.set()
            self._barrier.remove_barrier()
