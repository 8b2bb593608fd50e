"""Looks up lost parameter servers by their index, at whatever address they restarted."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from monolith.errors import CancelledError, DeadlineExceededError, OpError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.clock import Clock
    from monolith.ps.client.cluster import PsCluster

__all__ = ["ServerReconnector"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_PROBE_SECONDS = 2.0
_LINE_SECONDS = 10.0


class ServerReconnector:
    """Polls the addresses of the servers until all of them answer. Thread-safe.

    Args:
        cluster: The cluster whose addresses it updates.
        addresses: Returns index -> address of the servers registered now; may fail, and is then retried.
        clock: Measures waits.
    """

    def __init__(self, cluster: PsCluster, addresses: Callable[[], Mapping[int, str]], *, clock: Clock) -> None:
        self._cluster = cluster
        self._addresses = addresses
        self._clock = clock
        self._looking = threading.Lock()

    def wait(self, timeout_seconds: float) -> None:
        """Waits until all servers answer.

        Raises:
            DeadlineExceededError: some did not answer in this time; names them.
            CancelledError: the cluster was closed meanwhile.
        """
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
