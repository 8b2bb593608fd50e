"""A server with a request log: names of requests, both front ends, and a writer that is held while requests go on."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from monolith.data.protos.example_pb2 import Example
from monolith.errors import NotFoundError
from monolith.observe import process_recorder
from monolith.serving.request_log import LoggedRequest, RequestLogConfig, log, read_requests
from monolith.serving.server import ModelRegistry, ModelServer
from monolith.serving.server.grpc_service import GrpcService
from monolith.testing import SmallModel
from serving.request_log.test_log import HeldSink
from serving.server.test_grpc import RAGGED, call
from serving.server.test_grpc import request as grpc_request
from serving.server.test_rest import ONE, PATH, ask


@pytest.fixture
def registry() -> ModelRegistry:
    registry = ModelRegistry()
    registry.add("ranker", SmallModel())
    return registry


@pytest.fixture
def server(registry: ModelRegistry, tmp_path: Path) -> Iterator[ModelServer]:
    with ModelServer(registry, grpc_port=0, request_log=_config(tmp_path)) as server:
        yield server


def _config(folder: Path, **options: Any) -> RequestLogConfig:
    return RequestLogConfig(**{"place": str(folder), "share": 1.0, "item_column": "tags", **options})


def _requests(server: ModelServer, folder: Path) -> dict[bytes, LoggedRequest]:
    server.close()
    return {each.request_id: each for each in read_requests(str(folder))}


def _features(request: LoggedRequest, number: int) -> dict[str, Any]:
    example = Example.FromString(request.examples[number].sample)
    return {
        each.name: list(getattr(each.feature, str(each.feature.WhichOneof("type"))).value)
        for each in example.named_feature
        if not each.name.startswith("__SERVED__")
    }


def test_requests_of_both_front_ends_are_logged_by_their_names(server: ModelServer, tmp_path: Path) -> None:
    reply = ask(server, body=ONE, x_request_id="by-rest")
    assert reply.headers["x-request-id"] == "by-rest"
    made = ask(server, body=ONE).headers["x-request-id"]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call(channel, grpc_request(RAGGED), metadata=(("x-request-id", "by-grpc"),))
    logged = _requests(server, tmp_path)
    assert set(logged) == {b"by-rest", made.encode(), b"by-grpc"}
    assert _features(logged[b"by-rest"], 0) == {"tags": [1, 2], "weight": [0.5]}
    assert [each.outputs["score"].tolist() for each in logged[b"by-grpc"].examples] == [[3.5], [6.0]]
    assert [_features(logged[b"by-grpc"], number)["tags"] for number in range(2)] == [[1, 2], [5]]
    assert (logged[b"by-grpc"].model, logged[b"by-grpc"].export) == ("ranker", 7)


def test_an_answer_over_grpc_names_the_request(server: ModelServer) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        ask_grpc = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        data = grpc_request(RAGGED).SerializeToString()
        _, done = ask_grpc.with_call(data, timeout=120, metadata=(("x-request-id", "abc"),))
        assert dict(done.trailing_metadata())["x-request-id"] == "abc"
        _, done = ask_grpc.with_call(data, timeout=120)
        assert len(dict(done.trailing_metadata())["x-request-id"]) == 32


def test_a_name_that_metadata_cannot_hold_is_replaced(registry: ModelRegistry, tmp_path: Path) -> None:
    class Context:
        trailing: tuple[tuple[str, str], ...] = ()

        def __init__(self, given: str) -> None:
            self.given = given

        def time_remaining(self) -> None: ...

        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return (("other", "x"), ("x-request-id", self.given))

        def set_trailing_metadata(self, trailing: tuple[tuple[str, str], ...]) -> None:
            self.trailing = trailing

    with ModelServer(registry, request_log=_config(tmp_path)) as server:
        for given in ("caf\xe9", "a\nb"):
            context = Context(given)
            GrpcService(server.core).predict(grpc_request(RAGGED).SerializeToString(), context)
            assert len(dict(context.trailing)["x-request-id"]) == 32


def test_a_shared_column_stands_in_every_example_and_requests_that_failed_in_none(
    server: ModelServer, tmp_path: Path
) -> None:
    ask(server, body={"inputs": {"tags": [[1], [2, 3]], "weight": [0.5]}}, x_request_id="shared")
    assert ask(server, body={"instances": [{"tags": [13], "weight": 0}]}, x_request_id="unlucky").status == 400
    assert ask(server, body={"instances": [{"tags": ["x"], "weight": 0}]}, x_request_id="wrong").status == 400
    logged = _requests(server, tmp_path)
    assert set(logged) == {b"shared"}
    assert [_features(logged[b"shared"], number)["weight"] for number in range(2)] == [[0.5], [0.5]]


def test_encoded_samples_are_logged_with_their_features(server: ModelServer, tmp_path: Path) -> None:
    example = Example(label=[1.0])
    example.named_feature.add(name="tags").feature.fid_v2_list.value.extend([4, 5])
    data = example.SerializeToString()
    ask(server, body={"inputs": {"examples": [{"b64": base64.b64encode(data).decode()}]}}, x_request_id="encoded")
    logged = _requests(server, tmp_path)[b"encoded"]
    assert _features(logged, 0) == {"tags": [4, 5]}
    assert logged.examples[0].outputs["score"].tolist() == [len(data)]


def test_without_a_log_answers_name_no_request(registry: ModelRegistry) -> None:
    with ModelServer(registry) as server:
        assert "x-request-id" not in ask(server, body=ONE, x_request_id="abc").headers


@pytest.mark.parametrize("given", ["x" * 257, "", "\xff\xfe"])
def test_a_strange_name_fails_no_request(server: ModelServer, tmp_path: Path, given: str) -> None:
    reply = ask(server, body=ONE, x_request_id=given)
    assert reply.status == 200
    name = reply.headers["x-request-id"].encode("latin-1")
    assert (name == given.encode("latin-1")) == (given == "\xff\xfe")
    assert set(_requests(server, tmp_path)) == {name}


def test_requests_are_answered_while_the_writer_is_stuck(
    registry: ModelRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "RolledFiles", lambda _, told, **__: HeldSink(told))
    before = _dropped()
    with ModelServer(registry, request_log=_config(tmp_path, queue_bytes=300)) as server:
        assert server.core.request_log is not None
        sink: Any = server.core.request_log._sink
        ask(server, body=ONE)
        assert sink.entered.wait(60)
        for _ in range(20):
            assert ask(server, PATH, ONE).status == 200
        assert not sink.let_go.is_set()
        assert _dropped() > before
        sink.let_go.set()


def _dropped() -> float:
    try:
        return process_recorder().counter("monolith.serving.request_log_dropped", {"reason": "queue_full"})
    except NotFoundError:
        return 0.0
