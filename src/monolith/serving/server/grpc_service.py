"""The services of TF-Serving over gRPC: Predict, GetModelMetadata, GetModelStatus; and the server that offers them.

A ragged input comes as two tensors, ``name/values`` and ``name/row_splits``, or padded to a rectangle where the slot
has a padding id; encoded samples as DT_STRING under ``example_batch``, ``examples`` or ``instances``. The trailing
metadata of an answer has its model version, ``x-model-version``, and if requests are logged the request id,
``x-request-id``; a rejection for overload has the time to retry in ``grpc-retry-pushback-ms``.
"""

from __future__ import annotations

import math
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import torch
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import Int64Value
from torch import Tensor

from monolith.cluster import concat_ip_and_port
from monolith.errors import InvalidArgumentError
from monolith.export import DEFAULT_SIGNATURE, Signature
from monolith.rpc import RpcServer, ServerCredentials, Status, UnaryMethod, keep_alive, load_grpc, unary_handler
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.protos.tensor_pb2 import DT_STRING
from monolith.serving.request import VALUES, Column, values_of_texts
from monolith.serving.server.http.json_request import METHOD, REFUSED_CODE, number_of, status_message, version_text
from monolith.serving.server.model_threads import Answer
from monolith.serving.server.request_core import RequestDispatcher, Target, deadline_error, refusal_of
from monolith.serving.tensor_messages import (
    METHODS,
    MODEL_SERVICE,
    OWN_NAMES,
    PREDICTION_SERVICE,
    add_health,
    message_of,
    packed_signatures,
    shape_message,
    strings_of,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.data import TextColumn
    from monolith.serving.server.config import ServerConfig
    from monolith.serving.server.registry import RegisteredModel
    from monolith.tensors import Ragged

MOST_TEXTS = 1 << 20
"""Maximum number of texts in a tensor: each is a Python object, created with the GIL held."""
_SIGNATURES = "signature_def"


class GrpcService:
    """Handlers of the calls; each runs in a thread of the gRPC server."""

    def __init__(self, core: RequestDispatcher) -> None:
        self._core = core

    def predict(self, data: bytes, context: Any) -> messages.PredictResponse:
        """Handles Predict."""
        deadline = self._core.deadline_of(context.time_remaining())
        self._core.threads.require_room(deadline)
        client_id = _given_id(context)
        # Metadata can carry only such ids.
        printable = client_id is not None and client_id.isascii() and client_id.isprintable()
        request_id = self._core.request_id_of(client_id.encode() if client_id is not None and printable else None)
        request = _parsed(messages.PredictRequest, data)
        outcomes: SimpleQueue[Answer | BaseException] = SimpleQueue()
        self._core.ask(
            _target_of(request.model_spec, client_id),
            request.model_spec.signature_name or DEFAULT_SIGNATURE,
            lambda known: columns_of(request.inputs, known),
            deadline=deadline,
            done=outcomes.put,
            request_id=request_id,
        )
        left = max(0.0, deadline - time.monotonic())
        try:
            outcome = outcomes.get(timeout=left)
        except Empty:
            raise deadline_error(left) from None
        if not isinstance(outcome, Answer):
            raise outcome
        version = ("x-model-version", version_text(outcome.version))
        named = () if request_id is None else (("x-request-id", request_id.decode("latin-1")),)
        context.set_trailing_metadata((version, *named))
        return _response(request, outcome)

    def get_model_metadata(self, data: bytes, _: Any) -> messages.GetModelMetadataResponse:
        """Handles GetModelMetadata: the signatures of a version."""
        request = _parsed(messages.GetModelMetadataRequest, data)
        unknown = [field for field in request.metadata_field if field != _SIGNATURES]
        if unknown or not request.metadata_field:
            got = repr(unknown[0]) if unknown else "none"
            raise InvalidArgumentError(f"metadata_field: must be {_SIGNATURES!r}, got {got}")
        target = _target_of(request.model_spec)
        with self._core.registry.using(target.name, version=target.version, label=target.label) as entry:
            return messages.GetModelMetadataResponse(
                model_spec=messages.ModelSpec(name=entry.name, version=Int64Value(value=entry.version)),
                metadata={_SIGNATURES: packed_signatures(_signatures_of(entry))},
            )

    def get_model_status(self, data: bytes, _: Any) -> messages.GetModelStatusResponse:
        """Handles GetModelStatus: the served versions."""
        request = _parsed(messages.GetModelStatusRequest, data)
        target = _target_of(request.model_spec)
        entries, refused = self._core.registry.status(target.name, target.version, target.label)
        statuses = [
            messages.ModelVersionStatus(
                version=entry.version,
                state=messages.ModelVersionStatus.AVAILABLE,
                status=messages.StatusProto(error_code=0, error_message=status_message(entry)),
            )
            for entry in entries
        ]
        for version, why in refused.items():
            status: Any = messages.StatusProto(error_code=REFUSED_CODE, error_message=why)
            ended = messages.ModelVersionStatus.END
            statuses.append(messages.ModelVersionStatus(version=version, state=ended, status=status))
        return messages.GetModelStatusResponse(model_version_status=statuses)


def service_handlers(service: GrpcService, credentials: ServerCredentials) -> list[Any]:
    """Returns the services for gRPC; requests are passed as bytes, so that overload is rejected before decoding."""
    behaviors = {
        (PREDICTION_SERVICE, "Predict"): service.predict,
        (PREDICTION_SERVICE, "GetModelMetadata"): service.get_model_metadata,
        (MODEL_SERVICE, "GetModelStatus"): service.get_model_status,
    }
    return [
        unary_handler(
            shown,
            {
                method: UnaryMethod(behaviors[name, method], None, wire.response.SerializeToString)
                for method, wire in methods.items()
            },
            credentials,
            status=_status_of,
        )
        for name, methods in METHODS.items()
        for shown in (name, OWN_NAMES[name])
    ]


def _status_of(_: str, error: Exception) -> Status:
    refusal = refusal_of(error)
    if refusal.retry_after_seconds is None:
        return Status(refusal.code, refusal.sentence)
    pushback = str(math.ceil(refusal.retry_after_seconds * 1e3))
    return Status(refusal.code, refusal.sentence, (("grpc-retry-pushback-ms", pushback),))


def _given_id(context: Any) -> str | None:
    """Returns the request id given by the client."""
    for name, value in context.invocation_metadata():
        if name == "x-request-id" and isinstance(value, str):
            return value
    return None


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidArgumentError(f"the bytes are no {kind.DESCRIPTOR.name}: cut off or foreign") from None


def _target_of(spec: messages.ModelSpec, request_id: str | None = None) -> Target:
    if not spec.name:
        raise InvalidArgumentError("model_spec: must name a model")
    version = spec.version.value if spec.HasField("version") else None
    return Target(spec.name, version, spec.version_label or None, request_id)


def columns_of(inputs: Mapping[str, Any], signature: Signature) -> dict[str, Column]:
    """Decodes the columns of a request; texts become ids if the signature defines how."""
    columns: dict[str, Column] = {}
    for name, message in inputs.items():
        if message.dtype == DT_STRING and (texts := _texts_of(name, signature)) is not None:
            ids = _ids_of_texts(name, message, texts)
            columns[name] = values_of_texts(name, ids) if name not in signature.inputs else ids
            continue
        if message.dtype == DT_STRING:
            columns[name] = strings_of(message, name=f"input {name!r}")
            continue
        value = value_of(message, name=f"input {name!r}")
        assert isinstance(value, Tensor)  # noqa: S101 - numbers are
        columns[name] = value if value.ndim else value.reshape(1)
    return columns


def _texts_of(name: str, signature: Signature) -> TextColumn | None:
    spec = signature.inputs.get(name) or signature.inputs.get(name.removesuffix(VALUES))
    return None if spec is None else spec.texts


def _ids_of_texts(name: str, message: Any, texts: TextColumn) -> Tensor | Ragged:
    """Returns the ids of texts: one dim with one text per example, or two dims with the same number for each."""
    if len(message.string_val) > MOST_TEXTS:
        raise InvalidArgumentError(f"input {name!r}: may have {MOST_TEXTS} texts, got {len(message.string_val)}")
    values: Any = value_of(message, name=f"input {name!r}")
    if values.ndim > 2:
        raise InvalidArgumentError(f"input {name!r}: texts must have one or two dims, got {values.ndim}")
    splits = torch.arange(values.shape[0] + 1) * values.shape[1] if values.ndim > 1 else None
    return texts.ids(values.ravel().tolist(), splits)


def _response(request: messages.PredictRequest, answer: Answer) -> messages.PredictResponse:
    names = list(request.output_filter) or list(answer.outputs)
    for name in names:
        if name not in answer.outputs:
            raise InvalidArgumentError(f"output_filter: there is no {name!r}; outputs are: {', '.join(answer.outputs)}")
    response = messages.PredictResponse(outputs={name: message_of(answer.outputs[name]) for name in names})
    spec = response.model_spec
    spec.name, spec.signature_name = request.model_spec.name, request.model_spec.signature_name
    spec.version.value = answer.version.export
    return response


def _signatures_of(entry: RegisteredModel) -> messages.SignatureDefMap:
    described = {
        name: messages.SignatureDef(
            inputs={column: _tensor_info(column, spec) for column, spec in signature.inputs.items()},
            outputs={column: _tensor_info(column, spec) for column, spec in signature.outputs.items()},
            method_name=METHOD,
        )
        for name, signature in entry.model.signatures.items()
    }
    return messages.SignatureDefMap(signature_def=described)


def _tensor_info(name: str, spec: Any) -> messages.TensorInfo:
    number: Any = number_of(spec.dtype)
    return messages.TensorInfo(name=name, dtype=number, tensor_shape=shape_message(spec.shape))


_KEEP_ALIVE_MS = 20_000


class GrpcFront:
    """gRPC front end of a server. The health service needs no token, as over HTTP."""

    def __init__(self, core: RequestDispatcher, options: ServerConfig) -> None:
        load_grpc(who="the server", extra="serving")
        limits, credentials = options.limits, options.credentials()
        self._drain_seconds = options.drain_seconds
        self._server = RpcServer(
            service_handlers(GrpcService(core), credentials),
            credentials,
            name="grpc",
            num_threads=limits.concurrent_rpcs,
            max_calls=limits.concurrent_rpcs,
            options=[
                ("grpc.max_receive_message_length", limits.body_bytes),
                ("grpc.max_send_message_length", -1),
                *keep_alive(int(limits.write_seconds * 1e3), every_ms=_KEEP_ALIVE_MS),
            ],
        )
        self._health = add_health(self._server.grpc_server, core.why_not_ready)
        self.port = self._server.listen(concat_ip_and_port(options.host, options.grpc_port or 0))
        """Port of the server."""
        self._server.start()

    def show_ending(self) -> None:
        """Sets the health status to NOT_SERVING."""
        self._health.enter_graceful_shutdown()

    def close(self) -> None:
        """Rejects new calls, drains running ones, and stops the server."""
        self._health.enter_graceful_shutdown()
        self._server.close(self._drain_seconds)
