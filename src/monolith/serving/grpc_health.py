"""gRPC's own health service, as a server of ours tells it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from monolith.serving.wire_methods import MODEL_SERVICE, PREDICTION_SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_health"]


def add_health(server: Any, why_not_ready: Callable[[], str | None]) -> Any:
    """Adds the service to a server of grpcio; everybody may ask it.

    Args:
        server: Before it is started.
        why_not_ready: Why nothing is to be asked here; None: it is ready.

    Returns:
        The servicer, whose `enter_graceful_shutdown` says that nothing more is to be asked.
    """
    health, messages = _module("health"), _module("health_pb2")

    class Health(health.HealthServicer):  # type: ignore[misc, name-defined]  # imported on first use
        """Says SERVING when it is ready."""

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
