"""The calls of TensorFlow Serving that this library serves and makes: their paths and messages.

The paths are TensorFlow's. The messages are in a package of this library, so that ``tensorflow-serving-api`` can be
imported in the same process; the package name is not sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.any_pb2 import Any as AnyMessage

from monolith.serving.protos import prediction_service_pb2 as messages

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["METHODS", "MODEL_SERVICE", "OWN_NAMES", "PREDICTION_SERVICE", "WireMethod", "packed_signatures", "path_of"]

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
    MODEL_SERVICE: {
        "GetModelStatus": WireMethod(messages.GetModelStatusRequest, messages.GetModelStatusResponse),
    },
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
