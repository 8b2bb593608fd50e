"""The two ends of gRPC: `open_channel` for clients, `RpcServer` for servers.

`ConnectionLimit` bounds connections whose peers have not authenticated, for which gRPC has no limit of its own.
"""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from monolith.background import PeriodicThread
from monolith.errors import UnavailableError
from monolith.observe import share_of_descriptors
from monolith.rpc.credentials import ClientCredentials, ServerCredentials, load_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


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


KEEP_ALIVE_MS = 10_000


def open_channel(
    address: str,
    credentials: ClientCredentials,
    *,
    message_bytes: int | None = None,
    options: Sequence[tuple[str, int]] = (),
) -> Any:
    """Opens a channel of gRPC, which connects on the first call and reconnects by itself.

    Args:
        address: ``host:port`` or ``unix:<path>``.
        credentials: TLS of the channel. A token is passed with each call, as its metadata.
        message_bytes: Maximum size of a message in either direction; None: the default of gRPC, 4 MiB for answers.
        options: Further options of gRPC.
    """
    grpc = load_grpc()
    every = [
        ("grpc.enable_http_proxy", 0),  # a web proxy cannot reach a server
        ("grpc.use_local_subchannel_pool", 1),  # two clients in one process must not share a connection
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 1000),
        *_sizes(message_bytes),
        *options,
    ]
    secure = credentials.grpc_credentials()
    return grpc.insecure_channel(address, every) if secure is None else grpc.secure_channel(address, secure, every)


def keep_alive(timeout_ms: int = KEEP_ALIVE_MS, *, every_ms: int = KEEP_ALIVE_MS) -> list[tuple[str, int]]:
    """Returns the options that detect a peer which was cut off without a close."""
    return [("grpc.keepalive_time_ms", every_ms), ("grpc.keepalive_timeout_ms", timeout_ms)]


class RpcServer:
    """A server of gRPC with its threads, which limits connections that have not authenticated.

    Args:
        handlers: Services, of `make_handler`, `unary_handler` and `FrameRelay.handler`.
        credentials: Credentials that callers must present.
        name: Name of the server, in errors and of its threads.
        num_threads: Maximum number of calls that run at the same time; threads start on demand.
        message_bytes: Maximum size of a message in either direction; None: the default of gRPC.
        max_calls: Further calls are rejected with RESOURCE_EXHAUSTED; None: they wait for a thread.
        options: Further options of gRPC.
    """

    def __init__(
        self,
        handlers: Sequence[Any],
        credentials: ServerCredentials,
        *,
        name: str,
        num_threads: int,
        message_bytes: int | None = None,
        max_calls: int | None = None,
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._name = name
        self._credentials = credentials
        self._limit = ConnectionLimit(credentials)
        self._port: int | None = None
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name.replace(" ", "-"))
        self.grpc_server: Any = load_grpc().server(
            self._threads,
            handlers=handlers,
            interceptors=[self._limit],
            # By default two servers may share one port on Linux, and calls reach either.
            options=[("grpc.so_reuseport", 0), *_sizes(message_bytes), *options],
            maximum_concurrent_rpcs=max_calls,
        )
        """The server as gRPC has it, to add services before `start`."""

    def listen(self, address: str) -> int:
        """Binds ``host:port`` and returns the port, a free one for port 0; or binds ``unix:<path>``.

        Raises:
            UnavailableError: the address is taken. The server is closed then.
        """
        secure = self._credentials.grpc_credentials()
        add = self.grpc_server.add_insecure_port if secure is None else self.grpc_server.add_secure_port
        try:
            port = int(add(address) if secure is None else add(address, secure))
        except RuntimeError as error:
            self.close(0.0)
            raise UnavailableError(
                f"{self._name}: cannot listen on {address}; is the port taken? Choose another one, or 0 ({error})"
            ) from error
        if not address.startswith("unix:"):
            self._port = port
        return port

    def start(self) -> None:
        """Starts serving."""
        self.grpc_server.start()
        if self._port is not None:  # only its owner can reach a Unix socket
            self._limit.watch(self._port)

    def stop(self, grace_seconds: float) -> Any:
        """Rejects new calls, and cancels those still running after `grace_seconds`; returns an event of the end."""
        return self.grpc_server.stop(grace_seconds)

    def close(self, grace_seconds: float) -> None:
        """Stops the server and waits for the end of its calls and threads. Idempotent."""
        self.stop(grace_seconds).wait()
        self._threads.shutdown()
        self._limit.close()


def _sizes(message_bytes: int | None) -> list[tuple[str, int]]:
    if message_bytes is None:
        return []
    return [("grpc.max_receive_message_length", message_bytes), ("grpc.max_send_message_length", message_bytes)]
