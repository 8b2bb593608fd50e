"""Follows servers that come back elsewhere, beside the thread that trains: it may be waiting for what they say."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Self

from monolith.errors import OpError

if TYPE_CHECKING:
    from monolith.ps.cluster import PsCluster
    from monolith.train.servers_back import ServersBack

__all__ = ["ServerWatch"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_ANSWER_SECONDS = 2.0
"""One that goes between two looks is looked for again after this time."""


class ServerWatch:
    """Hears at once when the connection to a server ends, and looks for it until it is back. A context manager.

    A worker that waits at a barrier, or a chief that has put one up, hears of the home server only; and what was on its
    way to a server goes on to where it is then.

    Args:
        cluster: The servers.
        back: Knows where to look.
    """

    def __init__(self, cluster: PsCluster, back: ServersBack) -> None:
        self._cluster = cluster
        self._back = back
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
                self._closed.wait(_LOOK_SECONDS)
            if self._closed.is_set():
                return

    def _is_whole(self) -> bool:
        """Whether all servers are there, and will be heard when they go."""
        if self._back.look():
            return False
        try:
            self._cluster.require_stay(timeout_seconds=_ANSWER_SECONDS)
        except OpError as error:
            _log.debug("a parameter server was there and is not: %s", error)
            return False
        return True
