"""Limits connections to a gRPC port whose peers have not authenticated: gRPC has no limit of its own for them."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
import threading
import time
import urllib.parse
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from monolith.background import PeriodicThread
from monolith.observe import share_of_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.rpc.credentials import ServerCredentials

MOST_CONNECTIONS = 128
SILENT_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_Peer: TypeAlias = "tuple[str, int]"
_BEHAVIORS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


@dataclass(slots=True)
class _Connection:
    """An open connection."""

    since: float
    descriptor: int
    has_called: bool = False
    is_admitted: bool = False


class ConnectionLimit:
    """Closes connections to a gRPC port that hold descriptors without authenticating.

    It is a server interceptor: calls show which peers have presented valid `credentials`. A thread polls the sockets of
    this process. A connection without any call is closed after `silent_seconds`, however many bytes it has sent. The
    number of connections without an accepted call is limited to `most`, and to an eighth of the descriptors that this
    process may open; the oldest are closed first.

    Args:
        credentials: Credentials that callers must present.
        most: Maximum number of connections that are not authenticated.
        silent_seconds: Time limit for the first call.
    """

    def __init__(
        self, credentials: ServerCredentials, *, most: int = MOST_CONNECTIONS, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        self._credentials = credentials
        self._most = share_of_descriptors(most)
        self._silent_seconds = silent_seconds
        self._lock = threading.Lock()
        self._calls: dict[_Peer, tuple[bool, float]] = {}
        """Peers that have called: whether a call was accepted, and when the last one came."""
        self._connections: dict[_Peer, _Connection] = {}
        self._thread: PeriodicThread | None = None

    def watch(self, port: int) -> None:
        """Starts a thread that polls the connections to a port."""
        self._thread = PeriodicThread(partial(self._look, port), every=_LOOK_SECONDS, name=f"connections-{port}")
        self._thread.start(after=_LOOK_SECONDS)

    def close(self) -> None:
        """Stops the thread. Idempotent."""
        if self._thread is not None:
            self._thread.close()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Records the peer of a call; gRPC calls this for each one."""
        handler = continuation(details)
        if handler is None:
            return None
        is_accepted = self._credentials.accepts(details.invocation_metadata)
        name = next(behavior for behavior in _BEHAVIORS if getattr(handler, behavior) is not None)
        return handler._replace(**{name: self._noting(getattr(handler, name), is_accepted)})

    def _noting(self, behavior: Any, is_accepted: bool) -> Any:
        def note(request: Any, context: Any, *more: Any) -> Any:
            self._note(context.peer(), is_accepted)
            return behavior(request, context, *more)

        if hasattr(behavior, "experimental_non_blocking"):
            note.experimental_non_blocking = behavior.experimental_non_blocking  # type: ignore[attr-defined]
        return note

    def _note(self, peer: str, is_accepted: bool) -> None:
        place = _place_of(peer)
        if place is not None:
            with self._lock:
                before = self._calls.get(place, (False, 0.0))[0]
                self._calls[place] = (before or is_accepted, time.monotonic())

    def _look(self, port: int) -> None:
        now = time.monotonic()
        open_sockets = dict(_connections_to(port))
        before, self._connections = self._connections, {}
        with self._lock:
            for peer, descriptor in open_sockets.items():
                known = before.get(peer)
                same = known is not None and known.descriptor == descriptor
                connection = known if same and known is not None else _Connection(now, descriptor)
                connection.has_called = peer in self._calls
                connection.is_admitted = self._calls.get(peer, (False, 0.0))[0]
                self._connections[peer] = connection
            # A call may have come from a connection that was opened after the sockets were listed.
            self._calls = {peer: call for peer, call in self._calls.items() if peer in open_sockets or call[1] >= now}
        others = [(peer, connection) for peer, connection in self._connections.items() if not connection.is_admitted]
        others.sort(key=lambda other: other[1].since)
        excess = len(others) - self._most
        for number, (peer, connection) in enumerate(others):
            is_silent = not connection.has_called and now - connection.since > self._silent_seconds
            if number < excess or is_silent:
                _hang_up(connection.descriptor, port, peer)


def _connections_to(port: int) -> Iterator[tuple[_Peer, int]]:
    """Yields the peer and the descriptor of each connection that this process has accepted on a port."""
    for descriptor in _descriptors():
        peer = _peer_of(descriptor, port)
        if peer is not None:
            yield peer, descriptor


def _descriptors() -> list[int]:
    try:
        return sorted(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208 - numbers, not paths
    except OSError:  # no descriptor is left for listing the folder
        return list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _peer_of(descriptor: int, port: int) -> _Peer | None:
    """Returns the peer of a connection to this port, or None where the descriptor is something else."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
            return None
        address = connection.getpeername()
        return _normal(address[0]), int(address[1])
    except OSError:
        return None
    finally:
        connection.detach()  # gRPC owns the descriptor


def _hang_up(descriptor: int, port: int, peer: _Peer) -> None:
    """Shuts a connection down, which gRPC then closes, unless the descriptor has been reused."""
    if _peer_of(descriptor, port) == peer:
        connection = socket.socket(fileno=descriptor)
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer has disconnected already
        finally:
            connection.detach()


def _place_of(peer: str) -> _Peer | None:
    """Returns address and port of a peer in gRPC's notation, such as ``ipv6:%5B::1%5D:5000``; None: a Unix socket."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (_normal(host.strip("[]")), int(port)) if kind in {"ipv4", "ipv6"} and port.isdigit() else None


def _normal(host: str) -> str:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
