"""Ports of a process, reserved or listening to show that it is alive; checks whether addresses accept connections."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.closing import Closing
from monolith.cluster.addresses import EVERY_INTERFACE, concat_ip_and_port, get_local_ip, is_ipv6_address, split_address
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


_RETRY_SECONDS = 0.1


def bound_socket(address: str, *, subject: str, listens: bool = False) -> socket.socket:
    """Returns a socket bound to this address, with SO_REUSEADDR.

    Args:
        address: ``host:port``; port 0 picks a free one.
        subject: Name of the user of the port, for the error message.
        listens: Whether the socket listens.

    Raises:
        UnavailableError: the port is in use, or the host is not an address of this machine.
    """
    host, port = split_address(address)
    bound = socket.socket(socket.AF_INET6 if is_ipv6_address(host) else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        if listens:
            bound.listen()
    except OSError as error:
        bound.close()
        raise UnavailableError(f"{subject}: cannot listen on {address}; is the port taken? ({error})") from error
    return bound


class ReservedPort(Closing):
    """Binds a port without listening on it, so that the system assigns it to no other process. A context manager.

    A listener on the port must allow the reuse of addresses (SO_REUSEADDR), as gRPC does. Without the reservation, a
    server that closes its port to listen on it again may find the port in use as the local end of some outgoing
    connection.

    >>> with ReservedPort("127.0.0.1:0") as held, socket.create_server(("127.0.0.1", held.port)) as server:
    ...     server.getsockname() == ("127.0.0.1", held.port)
    True

    Args:
        address: ``host:port``; port 0 picks a free one.

    Raises:
        UnavailableError: the port is in use, or the host is not an address of this machine.
    """

    def __init__(self, address: str) -> None:
        self._bound = bound_socket(address, subject="parameter server")
        self.port: int = self._bound.getsockname()[1]
        """Number of the port."""

    def close(self) -> None:
        """Releases the port. Idempotent."""
        self._bound.close()


class LivenessPort(Closing):
    """A listening port for `NodeAliveChecker`. A context manager.

    Args:
        address: ``host:port`` to listen on; port 0 picks a free one.

    Raises:
        UnavailableError: the port is in use, or the host is not an address of this machine.
    """

    def __init__(self, address: str) -> None:
        host, _ = split_address(address)
        self._closed = threading.Event()
        self._listening = bound_socket(address, subject="worker", listens=True)
        reached = get_local_ip() if host in EVERY_INTERFACE else host
        self.address = concat_ip_and_port(reached, self._listening.getsockname()[1])
        """Address at which other processes reach the port."""
        threading.Thread(target=self._serve, name="presence", daemon=True).start()

    def close(self) -> None:
        """Closes the port. Idempotent."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread, which close alone does not
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                visitor, _ = self._listening.accept()
            except OSError:  # may pass, such as a lack of descriptors
                if self._closed.wait(_RETRY_SECONDS):
                    return
                continue
            visitor.close()
