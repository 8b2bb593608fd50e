"""The calls of TensorFlow Serving that this library serves and makes: their paths and messages.

The paths are TensorFlow's. The messages are in a package of this library, so that ``tensorflow-serving-api`` can be
imported in the same process; the package name is not sent. `add_health` adds the standard gRPC health service.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.any_pb2 import Any as AnyMessage

from monolith.serving.protos import prediction_service_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

PREDICTION_SERVICE: Final = "tensorflow.serving.PredictionService"
MODEL_SERVICE: Final = "tensorflow.serving.ModelService"

_SIGNATURES_TYPE = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


class WireMethod(NamedTuple):
    """Request and response types of a method."""

    request: type[Message]
    response: type[Message]


METHODS: Final[dict[str, dict[str, WireMethod]]] = {
    PREDICTION_SERVICE: {
        "Predict": WireMethod(messages.PredictRequest, messages.PredictResponse),
        "GetModelMetadata": WireMethod(messages.GetModelMetadataRequest, messages.GetModelMetadataResponse),
    },
    MODEL_SERVICE: {"GetModelStatus": WireMethod(messages.GetModelStatusRequest, messages.GetModelStatusResponse)},
}
"""Service -> its methods; gRPC answers others with UNIMPLEMENTED."""

OWN_NAMES: Final = {
    service: service.replace("tensorflow.serving", "monolith.tf.serving")
    for service in (PREDICTION_SERVICE, MODEL_SERVICE)
}
"""Service -> its name in ``protos/serving``, used by clients generated from it."""


def path_of(service: str, method: str) -> str:
    """Returns the path of a method on the wire."""
    return f"/{service}/{method}"


def packed_signatures(signatures: messages.SignatureDefMap) -> AnyMessage:
    """Returns the value of ``signature_def`` in the metadata of a model, with TensorFlow's type name."""
    return AnyMessage(type_url=_SIGNATURES_TYPE, value=signatures.SerializeToString(deterministic=True))


def add_health(server: Any, why_not_ready: Callable[[], str | None]) -> Any:
    """Adds the service to a grpcio server; callers need no token.

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
