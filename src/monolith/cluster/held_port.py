"""A port that stays one process's own, also while nobody listens on it."""

from __future__ import annotations

import socket
from typing import Self

from monolith.cluster.addresses import is_ipv6_address, split_address
from monolith.errors import UnavailableError

__all__ = ["HeldPort", "bound_socket"]


def bound_socket(address: str, *, subject: str, listens: bool = False) -> socket.socket:
    """A socket that has this address, and allows its reuse.

    Args:
        address: ``host:port``; port 0 takes a free one.
        subject: Who wants it, for the message.
        listens: Whether others may connect to it.

    Raises:
        UnavailableError: the port is taken, or the host is none of this machine.
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


class HeldPort:
    """Binds a port without listening on it, so that nobody else is given it. A context manager.

    Who listens on it must allow the reuse of addresses (SO_REUSEADDR), as gRPC does. Without it, a server that closes
    its port to listen on it again can find it taken: by any connection that was given it as its own end.

    >>> with HeldPort("127.0.0.1:0") as held, socket.create_server(("127.0.0.1", held.port)) as server:
    ...     server.getsockname() == ("127.0.0.1", held.port)
    True

    Args:
        address: ``host:port``; port 0 takes a free one.

    Raises:
        UnavailableError: the port is taken, or the host is none of this machine.
    """

    def __init__(self, address: str) -> None:
        self._bound = bound_socket(address, subject="parameter server")
        self.port: int = self._bound.getsockname()[1]
        """Its number."""

    def close(self) -> None:
        """Gives it back. Calling it again does nothing."""
        self._bound.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
