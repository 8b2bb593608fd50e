"""REST and gRPC take the same columns, refuse the same ones, and hand the same values to a model."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import grpc
import pytest
import torch

from monolith.export import InputSpec, Signature
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.server import ModelRegistry, ModelServer
from monolith.serving.tensor_messages import METHODS, PREDICTION_SERVICE, message_of, path_of
from monolith.tensors import Ragged
from monolith.testing import SmallModel

Front = Callable[[str, Any, torch.dtype], bool]
"""Sends a column to a signature; whether it was taken."""


INPUTS: dict[str, InputSpec] = {
    "float32": InputSpec(kind="dense", dtype="float32", shape=(None,)),
    "float32_one": InputSpec(kind="dense", dtype="float32", shape=(None, 1)),
    "float32_two": InputSpec(kind="dense", dtype="float32", shape=(None, 2)),
    "float64": InputSpec(kind="dense", dtype="float64", shape=(None,)),
    "float32_rows": InputSpec(kind="dense", dtype="float32", shape=(None, None), ragged=True),
    "int64": InputSpec(kind="dense", dtype="int64", shape=(None,)),
    "int32": InputSpec(kind="dense", dtype="int32", shape=(None,)),
    "bool": InputSpec(kind="dense", dtype="bool", shape=(None,)),
    "ids": InputSpec(kind="ids", dtype="int64", shape=(None,)),
    "ids_rows": InputSpec(kind="ids", dtype="int64", shape=(None, None), ragged=True),
}
COLUMNS: dict[str, tuple[Any, torch.dtype]] = {
    "whole": ([1, 2], torch.int64),
    "whole_int32": ([1, 2], torch.int32),
    "negative": ([-1, -(2**40)], torch.int64),
    "unsigned": ([1, 2**63 + 5], torch.uint64),
    "real": ([1.5, -2.25], torch.float64),
    "real_float32": ([1.5, -2.25], torch.float32),
    "whole_as_real": ([1.0, 2.0], torch.float64),
    "beyond_float32": ([1e39, 1.0], torch.float64),
    "bools": ([True, False], torch.bool),
    "bytes": (["a", "b"], torch.uint8),
    "one_each": ([[1], [2]], torch.int64),
    "two_each": ([[1, 2], [3, 4]], torch.int64),
    "two_real_each": ([[1.5, 2.0], [3.0, 4.0]], torch.float64),
    "two_bools_each": ([[True, False], [False, False]], torch.bool),
    "none_each": ([[], []], torch.int64),
    "deep": ([[[1], [2]], [[3], [4]]], torch.int64),
}


class Echo(SmallModel):
    """Remembers its last inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.signatures = {name: Signature(inputs={"x": spec}, outputs={}) for name, spec in INPUTS.items()}
        self.last: Any = None

    def predict(self, inputs: Any, signature: str = "serving_default") -> Any:
        self.last = inputs["x"]
        answer = super().predict({"text": ["a"] * 2})
        return answer._replace(outputs={})


@pytest.fixture
def model() -> Echo:
    return Echo()


@pytest.fixture
def server(model: Echo) -> Iterator[ModelServer]:
    registry = ModelRegistry()
    registry.add("ranker", model)
    with ModelServer(registry, grpc_port=0) as server:
        yield server


def plain(column: Any) -> Any:
    return (column.dtype, column.to_lists() if isinstance(column, Ragged) else column.tolist())


@pytest.fixture
def rest(server: ModelServer) -> Iterator[Front]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port or 0, timeout=60)

    def ask(signature: str, values: Any, _: torch.dtype) -> bool:
        body = json.dumps({"signature_name": signature, "inputs": {"x": values}})
        connection.request("POST", "/v1/models/ranker:predict", body)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status in {200, 400}, text
        return answer.status == 200

    yield ask
    connection.close()


@pytest.fixture
def wire(server: ModelServer) -> Iterator[Front]:
    kinds = METHODS[PREDICTION_SERVICE]["Predict"]
    channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
    call = channel.unary_unary(path_of(PREDICTION_SERVICE, "Predict"), None, kinds.response.FromString)

    def ask(signature: str, values: Any, dtype: torch.dtype) -> bool:
        is_bytes = dtype is torch.uint8
        sent = [each.encode() for each in values] if is_bytes else torch.tensor(values, dtype=dtype)
        spec = messages.ModelSpec(name="ranker", signature_name=signature)
        request = messages.PredictRequest(model_spec=spec, inputs={"x": message_of(sent)})
        try:
            call(request.SerializeToString(), timeout=60)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            return False
        return True

    yield ask
    channel.close()


def test_both_front_ends_take_the_same_columns(model: Echo, rest: Front, wire: Front) -> None:
    seen: dict[str, dict[tuple[str, str], Any]] = {"rest": {}, "grpc": {}}
    for name, ask in (("rest", rest), ("grpc", wire)):
        for signature, column in product(INPUTS, COLUMNS):
            model.last = None
            taken = ask(signature, *COLUMNS[column])
            assert taken == (model.last is not None)
            seen[name][signature, column] = plain(model.last) if taken else "refused"
    assert seen["rest"] == seen["grpc"]
    assert seen["rest"]["float32", "whole"] == (torch.float32, [1.0, 2.0])
    assert seen["rest"]["bool", "bools"] == (torch.bool, [True, False])
    assert seen["rest"]["int64", "real"] == "refused"
