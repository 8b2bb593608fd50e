"""The gRPC services, asked by their names on the wire."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.server import ModelRegistry, ModelServer
from monolith.serving.tensor_messages import METHODS, MODEL_SERVICE, PREDICTION_SERVICE, message_of, path_of, value_of
from monolith.testing import SmallModel


@pytest.fixture
def model() -> SmallModel:
    return SmallModel()


@pytest.fixture
def server(model: SmallModel) -> Iterator[ModelServer]:
    registry = ModelRegistry()
    registry.add("ranker", model)
    with ModelServer(registry, port=None, grpc_port=0) as server:
        yield server


@pytest.fixture
def channel(server: ModelServer) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield channel


def request(
    inputs: dict[str, Any], *, signature: str = "", version: int | None = None, label: str = "", name: str = "ranker"
) -> messages.PredictRequest:
    spec = messages.ModelSpec(name=name, signature_name=signature)
    if version is not None:
        spec.version.value = version
    if label:
        spec.version_label = label
    return messages.PredictRequest(model_spec=spec, inputs={key: message_of(each) for key, each in inputs.items()})


def call(channel: Any, message: Any, method: str = "Predict", service: str = PREDICTION_SERVICE, **options: Any) -> Any:
    kinds = METHODS[service][method]
    ask = channel.unary_unary(path_of(service, method), None, kinds.response.FromString)
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return ask(data, timeout=options.pop("timeout", 120), **options)


RAGGED = {
    "tags/values": torch.tensor([1, 2, 5]),
    "tags/row_splits": torch.tensor([0, 2, 3]),
    "weight": torch.tensor([0.5, 1.0]),
}


def refused(channel: Any, message: Any, **options: Any) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, message, **options)
    return caught.value.code(), caught.value.details()


def test_a_request_is_answered_with_its_version(channel: Any) -> None:
    response = call(channel, request(RAGGED))
    assert value_of(response.outputs["score"]).tolist() == [3.5, 6.0]
    assert (response.model_spec.name, response.model_spec.version.value) == ("ranker", 7)
    padded = {"tags": torch.tensor([[1, 2], [3, 4]]), "weight": torch.tensor([0.0, 0.0])}
    assert value_of(call(channel, request(padded)).outputs["score"]).tolist() == [3.0, 7.0]


def test_encoded_samples_come_as_strings(channel: Any) -> None:
    assert value_of(call(channel, request({"example_batch": [b"\x18\x01"]})).outputs["score"]).tolist() == [2.0]
    assert value_of(call(channel, request({"examples": [b"abc", b""]})).outputs["score"]).tolist() == [3.0, 0.0]


def test_an_output_filter_chooses_outputs(channel: Any) -> None:
    message = request(RAGGED, signature="doubled")
    assert sorted(call(channel, message).outputs) == ["score", "twice"]
    message.output_filter.append("twice")
    assert list(call(channel, message).outputs) == ["twice"]
    message.output_filter.append("thrice")
    assert refused(channel, message)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_metadata_and_status_are_returned(channel: Any) -> None:
    spec = messages.ModelSpec(name="ranker")
    described = call(
        channel,
        messages.GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"]),
        "GetModelMetadata",
    )
    packed = described.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    signatures = messages.SignatureDefMap.FromString(packed.value).signature_def
    assert [dim.size for dim in signatures["vector"].inputs["vector"].tensor_shape.dim] == [-1, 3]
    status = call(channel, messages.GetModelStatusRequest(model_spec=spec), "GetModelStatus", MODEL_SERVICE)
    assert [(each.version, each.state) for each in status.model_version_status] == [(7, 30)]


@pytest.mark.parametrize(
    ("message", "code", "sentence"),
    [
        (request(RAGGED, name="other"), "NOT_FOUND", "there is no model 'other'"),
        (request(RAGGED, version=8), "NOT_FOUND", "there is no version 8"),
        (request(RAGGED, label="canary"), "NOT_FOUND", "there is no label 'canary'"),
        (request(RAGGED, signature="other"), "NOT_FOUND", "there is no signature 'other'"),
        (request(RAGGED, name=""), "INVALID_ARGUMENT", "must name a model"),
        (request({"weight": torch.ones(2)}), "INVALID_ARGUMENT", "input 'tags' is missing"),
        (request({**RAGGED, "age": torch.ones(2)}), "INVALID_ARGUMENT", "input 'age' is unknown"),
        (request({**RAGGED, "weight": torch.ones(3)}), "INVALID_ARGUMENT", "has 2 examples, and 'weight' has 3"),
        (request({**RAGGED, "weight": torch.full((2,), torch.nan)}), "INVALID_ARGUMENT", "must be finite"),
        (request({**RAGGED, "weight": [b"a", b"b"]}), "INVALID_ARGUMENT", "must be float32, got bytes"),
        (request({**RAGGED, "tags/values": torch.ones(3)}), "INVALID_ARGUMENT", "must be int64, got float32"),
        (
            request({**RAGGED, "weight": torch.ones(2, dtype=torch.complex64)}),
            "INVALID_ARGUMENT",
            "must be float32, got complex64",
        ),
        (request({**RAGGED, "tags/row_splits": torch.tensor([0, 2.5, 3])}), "INVALID_ARGUMENT", "must be int64"),
        (request({"example_batch": [b"\x0a\x05"]}), "INVALID_ARGUMENT", "the bytes are no ExampleBatch"),
        (request(RAGGED).SerializeToString()[:-3], "INVALID_ARGUMENT", "the bytes are no PredictRequest"),
        (b"\xff\xff", "INVALID_ARGUMENT", "the bytes are no PredictRequest"),
    ],
)
def test_a_wrong_request_gets_a_status_and_a_sentence(channel: Any, message: Any, code: str, sentence: str) -> None:
    got, details = refused(channel, message)
    assert (got.name, sentence in details) == (code, True), details
    call(channel, request(RAGGED))


def test_too_many_bytes_are_refused(model: SmallModel) -> None:
    registry = ModelRegistry()
    registry.add("ranker", model)
    with (
        ModelServer(registry, port=None, grpc_port=0) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        code, _ = refused(channel, request({"examples": [b"x" * (17 << 20)]}))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        code, details = refused(channel, request({"examples": [b"x"] * 10_001}))
        assert (code, details[:34]) == (grpc.StatusCode.INVALID_ARGUMENT, "a request may have 10000 examples,")


def test_a_deadline_is_honoured_while_the_model_hangs(channel: Any, model: SmallModel) -> None:
    release = threading.Event()
    model.before = lambda: release.wait(60) or None  # type: ignore[assignment]
    try:
        assert refused(channel, request(RAGGED), timeout=0.05)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    finally:
        release.set()


def test_health_follows_readiness(channel: Any, model: SmallModel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    asked = health_pb2.HealthCheckRequest(service="")
    assert stub.Check(asked, timeout=120).status == health_pb2.HealthCheckResponse.SERVING
    model.is_ready = False
    assert stub.Check(asked, timeout=120).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert value_of(call(channel, request(RAGGED)).outputs["score"]).tolist() == [3.5, 6.0]
