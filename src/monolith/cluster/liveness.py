"""Checks whether addresses accept connections: once for many nodes, or repeatedly for one port."""

from __future__ import annotations

import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.cluster.addresses import concat_ip_and_port, split_address
from monolith.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.clock import Clock

_log = logging.getLogger(__name__)

_PROBE_SECONDS = 1.0
"""Timeout of one attempt of `check_port`, and the pause before the next one."""


class NodeAliveCheckerError(UnavailableError):
    """Processes that training needs do not accept connections."""


class NodeAliveChecker:
    """Connects to every address once, with several threads, and records which ones accepted.

    The constructor returns when all addresses were tried; its threads have ended by then. The caller owns the lists
    that the getters return.
    """

    def __init__(self, addrs: Iterable[str], timeout: float = 1, num_thread: int = 10) -> None:
        if num_thread < 1:
            raise ValueError(f"node check: num_thread must be >= 1, got {num_thread}")
        self._addrs = list(addrs)
        with ThreadPoolExecutor(num_thread, thread_name_prefix="node-check") as pool:
            accepted = list(pool.map(lambda addr: _accepts(addr, timeout), self._addrs))
        self._alive = {addr for addr, is_alive in zip(self._addrs, accepted, strict=True) if is_alive}
        self._dead = {addr for addr, is_alive in zip(self._addrs, accepted, strict=True) if not is_alive}

    def all_nodes_alive(self) -> bool:
        """Returns whether every address accepted a connection."""
        return not self._dead

    def get_dead_nodes(self) -> list[str]:
        """Returns the addresses that did not accept a connection, sorted."""
        return sorted(self._dead)

    def get_alive_nodes(self) -> list[str]:
        """Returns the addresses that accepted a connection, sorted."""
        return sorted(self._alive)

    def get_addrs(self) -> list[str]:
        """Returns all addresses, in the order given."""
        return list(self._addrs)


def _accepts(addr: str, timeout: float) -> bool:
    try:
        socket.create_connection(split_address(addr), timeout=timeout).close()
    except (OSError, ValueError) as err:
        _log.warning("cannot connect to %s, because %s", addr, err)
        return False
    return True


def check_port(host: str, port: int, timeout: float = 0.0, *, clock: Clock | None = None) -> bool:
    """Returns whether the port accepts a connection, retrying until ``timeout`` seconds have passed.

    A name that does not resolve yet, as in a cluster whose nodes are still starting, is retried like a refused
    connection.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=_PROBE_SECONDS).close()
        except OSError as err:
            left = deadline - clock.monotonic()
            if left <= 0:
                _log.warning("cannot connect to %s, because %s", concat_ip_and_port(host, port), err)
                return False
            clock.sleep(min(_PROBE_SECONDS, left))
        else:
            return True
