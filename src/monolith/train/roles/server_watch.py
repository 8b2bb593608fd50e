"""Reconnects to servers that restart elsewhere, in a thread of its own, as the training thread may wait for them."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Self

from monolith.errors import OpError

if TYPE_CHECKING:
    from monolith.ps.client.cluster import PsCluster
    from monolith.stop_request import StopRequest
    from monolith.train.roles.servers_back import ServerReconnector

__all__ = ["GIVE_UP_SECONDS", "ServerWatch"]

_log = logging.getLogger(__name__)

GIVE_UP_SECONDS = 20.0
"""Seconds that a stopping process waits for an unreachable server."""
_LOOK_SECONDS = 0.2
_ANSWER_SECONDS = 2.0
"""Seconds after which a server that is lost between two polls is looked up again."""


class ServerWatch:
    """Detects immediately when the connection to a server ends, and looks it up until it is back. A context manager.

    A worker that waits at a barrier, or a chief that has set one, notices only the loss of server 0. Calls that were in
    flight to a lost server are sent to its new address.

    A stopping process still needs the servers for the last save. If one stays unreachable, the watch closes the cluster
    after `GIVE_UP_SECONDS`: calls in flight end, and no wait for a server lasts longer.

    Args:
        cluster: The servers.
        back: Looks up addresses.
        stop: Set when this process must stop.
    """

    def __init__(self, cluster: PsCluster, back: ServerReconnector, stop: StopRequest) -> None:
        self._cluster = cluster
        self._back = back
        self._stop = stop
        self._give_up_at: float | None = None
        self._closed = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job/servers", daemon=True)

    def __enter__(self) -> Self:
        self._cluster.on_loss(self._hear)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._lost.set()
        self._thread.join()

    def _hear(self) -> None:
        self._lost.set()

    def _run(self) -> None:
        while True:
            self._lost.wait()
            self._lost.clear()
            while not self._closed.is_set() and not self._is_whole():
                if self._gives_up():
                    _log.warning("a parameter server is unavailable; this process is stopping and does not wait for it")
                    self._cluster.close()
                    return
                self._closed.wait(_LOOK_SECONDS)
            self._give_up_at = None
            if self._closed.is_set():
                return

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
