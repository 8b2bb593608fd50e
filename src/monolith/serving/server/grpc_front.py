"""gRPC front end on grpcio's thread server: the services of `grpc_service.py`, and the standard health service."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from monolith.errors import UnavailableError
from monolith.rpc.connection_limit import ConnectionLimit
from monolith.rpc.credentials import load_grpc
from monolith.serving.grpc_health import add_health
from monolith.serving.server.grpc_service import GrpcService, service_handlers

if TYPE_CHECKING:
    from monolith.serving.server.config import ServerConfig
    from monolith.serving.server.request_core import RequestDispatcher

__all__ = ["GrpcFront"]

_KEEP_ALIVE_MS = 20_000


class GrpcFront:
    """gRPC front end of a server. The health service needs no token, as over HTTP.

    Args:
        core: Passes requests to models.
        options: Configuration of the server.

    Raises:
        UnavailableError: the port is taken.
    """

    def __init__(self, core: RequestDispatcher, options: ServerConfig) -> None:
        grpc = load_grpc(who="the server", extra="serving")
        limits, credentials = options.limits, options.credentials()
        self._drain_seconds = options.drain_seconds
        self._threads = ThreadPoolExecutor(limits.concurrent_rpcs, thread_name_prefix="grpc")
        self._limit = ConnectionLimit(credentials)
        self._server = grpc.server(
            self._threads,
            interceptors=[self._limit],
            maximum_concurrent_rpcs=limits.concurrent_rpcs,
            options=[
                ("grpc.max_receive_message_length", limits.body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", _KEEP_ALIVE_MS),
                ("grpc.keepalive_timeout_ms", int(limits.write_seconds * 1e3)),
            ],
        )
        self._server.add_generic_rpc_handlers(service_handlers(grpc, GrpcService(core), credentials))
        self._health = add_health(self._server, core.why_not_ready)
        self.port = self._bind(options)
        """Port of the server."""
        self._server.start()
        self._limit.watch(self.port)

    def show_ending(self) -> None:
        """Sets the health status to NOT_SERVING."""
        self._health.enter_graceful_shutdown()

    def close(self) -> None:
        """Rejects new calls, drains running ones, and stops the server."""
        self._health.enter_graceful_shutdown()
        self._server.stop(self._drain_seconds).wait()
        self._threads.shutdown()
        self._limit.close()

    def _bind(self, options: ServerConfig) -> int:
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"{host}:{options.grpc_port}"
        secure = options.credentials().grpc_credentials()
        try:
            add = self._server.add_insecure_port if secure is None else self._server.add_secure_port
            port = int(add(address) if secure is None else add(address, secure))
        except RuntimeError:
            port = 0
        if port == 0:
            self._threads.shutdown()
            raise UnavailableError(f"cannot listen on {address}; choose another port, or 0")
        return port
