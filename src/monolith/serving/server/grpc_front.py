"""gRPC by grpcio's thread server: the services of `grpc_service.py`, and gRPC's own health service."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from monolith.cluster.credentials import load_grpc
from monolith.errors import UnavailableError
from monolith.serving.server.grpc_service import GrpcService, service_handlers
from monolith.serving.wire_methods import MODEL_SERVICE, PREDICTION_SERVICE

if TYPE_CHECKING:
    from monolith.serving.server.config import ServerConfig
    from monolith.serving.server.request_core import RequestCore

__all__ = ["GrpcFront"]

_KEEP_ALIVE_MS = 20_000


class GrpcFront:
    """Answers gRPC until it is closed. Health is told to everybody, like that over HTTP.

    Args:
        core: Takes requests to models.
        options: Where it listens, and its limits.

    Raises:
        UnavailableError: the port is taken.
    """

    def __init__(self, core: RequestCore, options: ServerConfig) -> None:
        grpc = load_grpc(who="the server", extra="serving")
        limits, credentials = options.limits, options.credentials()
        self._drain_seconds = options.drain_seconds
        self._threads = ThreadPoolExecutor(limits.concurrent_rpcs, thread_name_prefix="grpc")
        self._health = _health_servicer(core)
        self._server = grpc.server(
            self._threads,
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
        _health_module("health_pb2_grpc").add_HealthServicer_to_server(self._health, self._server)
        self.port = self._bind(options)
        """The port it listens on."""
        self._server.start()

    def show_ending(self) -> None:
        """Health says that nothing more is to be asked here."""
        self._health.enter_graceful_shutdown()

    def close(self) -> None:
        """Takes no calls any more, lets those that are there be answered, and ends."""
        self._health.enter_graceful_shutdown()
        self._server.stop(self._drain_seconds).wait()
        self._threads.shutdown()

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


def _health_servicer(core: RequestCore) -> Any:
    health, messages = _health_module("health"), _health_module("health_pb2")

    class Health(health.HealthServicer):  # type: ignore[misc, name-defined]  # imported on first use
        """Says SERVING when the models that answer by default are ready."""

        def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            status = messages.HealthCheckResponse
            state = status.SERVING if core.why_not_ready() is None else status.NOT_SERVING
            for service in ("", PREDICTION_SERVICE, MODEL_SERVICE):
                self.set(service, state)
            return super().Check(request, context)

    return Health()


def _health_module(name: str) -> Any:
    try:
        return importlib.import_module(f"grpc_health.v1.{name}")
    except ModuleNotFoundError as error:
        message = f"the server needs {error.name}; run: pip install 'monolith-torch[serving]'"
        raise ModuleNotFoundError(message, name=error.name) from error
