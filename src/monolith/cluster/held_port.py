"""Ports of a process: one reserved without a listener, and one that shows that the process is alive."""

from __future__ import annotations

import contextlib
import socket
import threading

from monolith.closing import Closing
from monolith.cluster.addresses import EVERY_INTERFACE, concat_ip_and_port, get_local_ip, is_ipv6_address, split_address
from monolith.errors import UnavailableError

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
