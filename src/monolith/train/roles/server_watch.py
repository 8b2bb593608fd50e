"""Detects lost parameter servers, and looks them up by their index, at whatever address they restarted.

A thread of its own reconnects, as the training thread may wait for the servers.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Self

from monolith.background import END, Backoff, End, PeriodicThread
from monolith.errors import CancelledError, DeadlineExceededError, OpError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.clock import Clock
    from monolith.ps.client import PsCluster
    from monolith.stop_request import StopRequest

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_PROBE_SECONDS = 2.0
_LINE_SECONDS = 10.0


class ServerReconnector:
    """Polls the addresses of the servers until all of them answer. Thread-safe."""

    def __init__(self, cluster: PsCluster, addresses: Callable[[], Mapping[int, str]], *, clock: Clock) -> None:
        self._cluster = cluster
        self._addresses = addresses
        self._clock = clock
        self._looking = threading.Lock()

    def wait(self, timeout_seconds: float) -> None:
        """Waits until all servers answer."""
        begin = self._clock.monotonic()
        next_line = begin
        while missing := self.look():
            waited = self._clock.monotonic() - begin
            if self._cluster.is_closed:
                raise CancelledError(f"parameter servers {missing} are unavailable, and this process is stopping")
            if waited >= timeout_seconds:
                raise DeadlineExceededError(
                    f"parameter servers {missing} did not answer for {waited:.0f} s; start them again, under the same"
                    " index"
                )
            if self._clock.monotonic() >= next_line:
                _log.info("waiting for parameter servers %s (%.0f s)", missing, waited)
                next_line = self._clock.monotonic() + _LINE_SECONDS
            self._clock.sleep(_LOOK_SECONDS)

    def look(self) -> list[int]:
        """Returns the servers that do not answer, and updates the addresses of restarted ones."""
        with self._looking:
            return self._look()

    def _look(self) -> list[int]:
        missing = [index for index in range(self._cluster.num_ps) if not self._cluster.is_there(index, _PROBE_SECONDS)]
        if not missing:
            return []
        try:
            known = self._addresses()
        except Exception as error:  # noqa: BLE001 - the service may recover, whatever it answers until then
            _log.warning("discovery failed to return the addresses of parameter servers: %s", error)
            return missing
        return [index for index in missing if not self._move(index, known.get(index))]

    def _move(self, index: int, address: str | None) -> bool:
        if address is None:
            return False
        try:
            self._cluster.move(index, address, timeout_seconds=_PROBE_SECONDS)
        except OpError as error:
            _log.debug("parameter server %d is not at %s: %s", index, address, error)
            return False
        _log.info("parameter server %d is at %s", index, address)
        return True


GIVE_UP_SECONDS = 20.0
"""Seconds that a stopping process waits for an unreachable server."""
_ANSWER_SECONDS = 2.0
"""Seconds after which a server that is lost between two polls is looked up again."""


class ServerWatch:
    """Detects immediately when the connection to a server ends, and looks it up until it is back. A context manager.

    A worker that waits at a barrier, or a chief that has set one, notices only the loss of server 0. Calls that were in
    flight to a lost server are sent to its new address.

    A stopping process still needs the servers for the last save. If one stays unreachable, the watch closes the cluster
    after `GIVE_UP_SECONDS`: calls in flight end, and no wait for a server lasts longer.
    """

    def __init__(self, cluster: PsCluster, back: ServerReconnector, stop: StopRequest) -> None:
        self._cluster = cluster
        self._back = back
        self._stop = stop
        self._give_up_at: float | None = None
        self._thread = PeriodicThread(
            self._look_until_whole, every=None, name="job/servers", backoff=Backoff(_LOOK_SECONDS, _LOOK_SECONDS)
        )

    def __enter__(self) -> Self:
        self._cluster.on_loss(self._thread.wake)
        self._thread.start(after=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()

    def _look_until_whole(self) -> End | None:
        while not self._thread.closed.is_set():
            if self._gives_up():  # first, because a look may fail
                _log.warning("a parameter server is unavailable; this process is stopping and does not wait for it")
                self._cluster.close()
                return END
            if self._is_whole():
                break
            self._thread.closed.wait(_LOOK_SECONDS)
        self._give_up_at = None
        return None

    def _gives_up(self) -> bool:
        """Returns whether a server has been unreachable for too long since this process was requested to stop."""
        if self._stop.is_set() and self._give_up_at is None:
            self._give_up_at = time.monotonic() + GIVE_UP_SECONDS
        return self._give_up_at is not None and time.monotonic() >= self._give_up_at

    def _is_whole(self) -> bool:
        """Returns whether all servers are connected, so that their loss will be detected."""
        if self._back.look():
            return False
        try:
            self._cluster.require_stay(timeout_seconds=_ANSWER_SECONDS)
        except OpError as error:
            _log.debug("a parameter server is unavailable or was restarted: %s", error)
            return False
        return True
