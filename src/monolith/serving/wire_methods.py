"""The calls of TensorFlow Serving that are answered and made here: their paths on the wire and their messages.

The paths are TensorFlow's. The messages are of a package of ours, so that the real ``tensorflow-serving-api`` can live
in the same process; that name does not travel.
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
    """What a method takes and gives."""

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
"""Service to its methods; those that are not here are answered by UNIMPLEMENTED, as gRPC does by itself."""

OWN_NAMES: Final = {
    service: service.replace("tensorflow.serving", "monolith.tf.serving")
    for service in (PREDICTION_SERVICE, MODEL_SERVICE)
}
"""Service to its name in ``protos/serving``, which clients that are generated from it call."""


def path_of(service: str, method: str) -> str:
    """How a method is called on the wire."""
    return f"/{service}/{method}"


def packed_signatures(signatures: messages.SignatureDefMap) -> AnyMessage:
    """The value of ``signature_def`` in the metadata of a model, under the name that TensorFlow's clients know."""
    return AnyMessage(type_url=_SIGNATURES_TYPE, value=signatures.SerializeToString(deterministic=True))
