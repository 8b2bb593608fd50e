"""The two ends of gRPC: `open_channel` for clients, `RpcServer` for servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from monolith.errors import UnavailableError
from monolith.rpc.connection_limit import ConnectionLimit
from monolith.rpc.credentials import load_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.rpc.credentials import ClientCredentials, ServerCredentials

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
