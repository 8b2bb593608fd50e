"""The standard gRPC health service for the servers of this library."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from monolith.serving.wire_methods import MODEL_SERVICE, PREDICTION_SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_health"]


def add_health(server: Any, why_not_ready: Callable[[], str | None]) -> Any:
    """Adds the service to a grpcio server; callers need no token.

    Args:
        server: The server, not started yet.
        why_not_ready: Returns why the server is not ready; None: it is ready.

    Returns:
        The servicer; its `enter_graceful_shutdown` reports NOT_SERVING from then on.
    """
    health, messages = _module("health"), _module("health_pb2")

    class Health(health.HealthServicer):  # type: ignore[misc, name-defined]  # imported on first use
        """Reports SERVING while the server is ready."""

        def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            status = messages.HealthCheckResponse
            state = status.SERVING if why_not_ready() is None else status.NOT_SERVING
            for service in ("", PREDICTION_SERVICE, MODEL_SERVICE):
                self.set(service, state)
            return super().Check(request, context)

    servicer = Health()
    _module("health_pb2_grpc").add_HealthServicer_to_server(servicer, server)
    return servicer


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"grpc_health.v1.{name}")
    except ModuleNotFoundError as error:
        message = f"the server needs {error.name}; run: pip install 'monolith-torch[serving]'"
        raise ModuleNotFoundError(message, name=error.name) from error
