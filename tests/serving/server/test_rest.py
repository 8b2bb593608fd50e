"""The REST interface, asked as clients ask it."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from monolith.serving.server import ModelRegistry, ModelServer
from monolith.testing import SmallModel

PATH = "/v1/models/ranker:predict"
ONE = {"instances": [{"tags": [1, 2], "weight": 0.5}]}


@pytest.fixture
def model() -> SmallModel:
    return SmallModel()


@pytest.fixture
def registry(model: SmallModel) -> ModelRegistry:
    registry = ModelRegistry()
    registry.add("ranker", model)
    return registry


@pytest.fixture
def server(registry: ModelRegistry) -> Iterator[ModelServer]:
    with ModelServer(registry) as server:
        yield server


class Reply:
    def __init__(self, status: int, headers: dict[str, str], body: Any) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def error(self) -> str:
        assert list(self.body) == ["error"]
        return str(self.body["error"])


def ask(
    server: ModelServer, path: str = PATH, body: object = None, *, method: str | None = None, **headers: str
) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", server.port or 0, timeout=120)
    try:
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if body is None else "POST"), path, sent, named)
        response = connection.getresponse()
        text = response.read()
        return Reply(response.status, dict(response.getheaders()), json.loads(text) if text else None)
    finally:
        connection.close()


def test_rows_are_answered_row_by_row_and_return_their_version(server: ModelServer) -> None:
    reply = ask(server, body={"instances": [{"tags": [1, 2], "weight": 0.5}, {"tags": [], "weight": 2}]})
    assert (reply.status, reply.body) == (200, {"predictions": [3.5, 2.0]})
    assert json.loads(reply.headers["x-model-version"]) == {"export": 7, "dense": -1, "sparse": {"0": 12}}


def test_columns_are_answered_by_columns(server: ModelServer) -> None:
    reply = ask(server, body={"inputs": {"tags": [[1, 2], [4]], "weight": [0.5, 1]}})
    assert (reply.status, reply.body) == (200, {"outputs": [3.5, 5.0]})


def test_several_outputs_have_their_names(server: ModelServer) -> None:
    reply = ask(server, body={"signature_name": "doubled", **ONE})
    assert reply.body == {"predictions": [{"score": 3.5, "twice": [7.0]}]}
    columns = {"signature_name": "doubled", "inputs": {"tags": [[1]], "weight": [1]}}
    assert ask(server, body=columns).body == {"outputs": {"score": [2.0], "twice": [[4.0]]}}


def test_the_only_input_of_a_signature_needs_no_name(server: ModelServer) -> None:
    assert ask(server, body={"signature_name": "vector", "instances": [[1, 2, 3]]}).body == {"predictions": [6.0]}
    assert ask(server, body={"signature_name": "vector", "inputs": [[1, 2, 3]]}).body == {"outputs": [6.0]}
    encoded = {"b64": base64.b64encode(b"\xff\x00").decode()}
    assert ask(server, body={"signature_name": "text", "instances": [encoded, "abc"]}).body == {"predictions": [2, 3]}


def test_encoded_samples_are_taken_by_any_signature(server: ModelServer) -> None:
    batch = {"b64": base64.b64encode(b"\x18\x01").decode()}
    assert ask(server, body={"inputs": {"example_batch": batch}}).body == {"outputs": [2.0]}
    assert ask(server, body={"instances": [{"examples": batch}] * 2}).body == {"predictions": [2.0, 2.0]}


def test_a_ragged_column_may_come_as_values_and_splits(server: ModelServer) -> None:
    inputs = {"tags/values": [1, 2, 3], "tags/row_splits": [0, 1, 3], "weight": [0, 0]}
    assert ask(server, body={"inputs": inputs}).body == {"outputs": [1.0, 5.0]}


@pytest.mark.slow
def test_the_largest_bodies_block_no_other_request(server: ModelServer) -> None:
    """Bodies of 16 MiB are decoded one after another, and a probe of health is answered meanwhile."""
    bodies = [
        b'{"instances": [{' + b",".join(b'"k%d": 1' % key for key in range(1_150_000)) + b"}]}",
        b'{"inputs": {"weight": [1], "tags": [[' + b",".join([b"7"] * 8_000_000) + b"]]}}",
        b'{"inputs": {"examples": [' + b",".join([b'""'] * 5_000_000) + b"]}}",
    ]
    assert all(13 << 20 < len(body) <= 16 << 20 for body in bodies)
    statuses: list[int] = []
    sending = threading.Thread(target=lambda: statuses.extend(ask(server, body=body).status for body in bodies))
    sending.start()
    times: list[float] = []
    while sending.is_alive():
        begin = time.monotonic()
        assert ask(server, "/healthz").status == 200
        times.append(time.monotonic() - begin)
    assert statuses == [400, 200, 400]
    # 0.05 s as a rule, and seconds for each body where the event loop decodes. A machine may stand still once.
    assert len([each for each in times if each > 1.0]) <= 1


def test_ids_are_64_bits_with_or_without_a_sign(server: ModelServer, model: SmallModel) -> None:
    seen: list[int] = []
    real = SmallModel._score
    model._score = lambda inputs: (seen.extend(inputs["tags"].values.tolist()), real(inputs))[1]  # type: ignore[method-assign, func-returns-value]
    ids = [2**63 + 5, 2**64 - 1, 3]
    assert ask(server, body={"instances": [{"tags": ids, "weight": 0}]}).status == 200
    assert [each % 2**64 for each in seen] == ids


WRONG = [
    ({"instances": [{"tags": [1]}]}, "input 'weight' is missing; inputs are: tags, weight"),
    ({"instances": [{"tags": [1], "weight": 1, "age": 2}]}, "input 'age' is unknown"),
    ({"instances": [{"tags": [1], "weight": 1}, {"tags": [1]}]}, "instances: example 1 must have tags, weight"),
    ({"instances": [{"tags": [1.5], "weight": 1}]}, "input 'tags': must be integers, got a number"),
    ({"instances": [{"tags": ["1"], "weight": 1}]}, "input 'tags': must be integers, got a text"),
    ({"instances": [{"tags": [True], "weight": 1}]}, "input 'tags': must be integers, got true or false"),
    ({"instances": [{"tags": [[1]], "weight": 1}]}, "input 'tags': must be integers, got a list"),
    ({"instances": [{"tags": [2**64], "weight": 1}]}, "input 'tags': has a number that 64 bits do not hold"),
    ({"instances": [{"tags": [1], "weight": None}]}, "input 'weight': must be numbers, got null"),
    ({"instances": [{"tags": [1], "weight": [1]}]}, "input 'weight': must have the shape [] for an example, got [1]"),
    ({"instances": [{"tags": [1], "weight": float("nan")}]}, "JSON has neither NaN nor Infinity"),
    ({"instances": [{"tags": [1], "weight": 1e39}]}, "input 'weight': must be finite"),
    ({"instances": []}, "instances must be a list of at least one example, got an empty list"),
    ({"instances": [3]}, "instances must name its values; inputs are: tags, weight"),
    ({"inputs": {"tags": [[1], [2]], "weight": [1, 2, 3]}}, "input 'tags': has 2 examples, and 'weight' has 3"),
    ({"inputs": {}}, "inputs must not be empty"),
    ({"inputs": 3, "instances": []}, "the body must have one of 'instances' and 'inputs'"),
    ({}, "the body must have one of 'instances' and 'inputs'"),
    ({"instances": [1], "labels": 2}, "the body has the unknown key 'labels'"),
    ({"signature_name": 3, "instances": [1]}, "signature_name must be a text, got a number"),
    ([], "the body must be an object with 'instances' or 'inputs', got an empty list"),
    ({"signature_name": "vector", "instances": [[1, 2]]}, "must have the shape [3] for an example, got [2]"),
    ({"signature_name": "vector", "instances": [[1, 2, 3], [1]]}, "must have as many values in every example"),
    ({"signature_name": "text", "instances": [{"b64": "%"}]}, "input 'text': b64 must be base64"),
    ({"signature_name": "text", "instances": [5]}, "input 'text': must be a text or"),
    ({"inputs": {"example_batch": {"b64": "CgU="}}}, "the bytes are no ExampleBatch"),
    ({"inputs": {"example_batch": [{"b64": ""}] * 2}}, "must be one ExampleBatch, got 2"),
    ({"inputs": {"tags/values": [1], "weight": [1]}}, "input 'tags': must come as one tensor, or as"),
    ({"inputs": {"tags/values": [1], "tags/row_splits": [0, 2], "weight": [1]}}, "input 'tags/row_splits':"),
    ({"instances": [{"tags": [13], "weight": 1}]}, "id 13 brings bad luck"),
    ({"instances": [{"tags": [1], "weight": 1}, 5]}, "instances must be all objects or all values"),
    ({"instances": [{}]}, "instances: an example must name its values, got an empty object"),
    ({"instances": [{f"k{key}": 1 for key in range(20_000)}]}, "a request may have 16384 inputs, got more"),
    ({"inputs": {"tags": [[1]] * 10_001, "weight": [1]}}, "a request may have 10000 examples, got 10001"),
    (b'{"inputs": {"tags": [1], "tags": [2], "weight": [1]}}', "input 'tags' is given twice"),
    (b'{"instances": [{"tags": [1], "weight": 1}, {"tags": [1], "tags": [1]}]}', "got 'tags' twice"),
    (b'{"inputs": {"tags": [1], "weight": [1]}} x', "expected nothing more at byte 41"),
    (b'{"inputs": {"tags": ["\xc3"], "weight": [1]}}', "a string that is no UTF-8"),
    (b'{"inputs": {"tags": ["\\ud800"], "weight": [1]}}', "half of a surrogate pair"),
    (b"\xff", "the body must be JSON"),
    (b'{"instances": [', "the body must be JSON"),
    (b'{"instances":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body is JSON nested deeper than 32"),
    (b'{"instances":' + b"[" * 40 + b"]" * 40 + b"}", "the body is JSON nested deeper than 32"),
    (b'{"instances": [' + b"9" * 10_000 + b"]}", "the body must be JSON"),
]


@pytest.mark.parametrize(("body", "sentence"), WRONG)
def test_a_wrong_request_is_rejected_with_what_is_wrong(server: ModelServer, body: object, sentence: str) -> None:
    reply = ask(server, body=body)
    assert reply.status == 400
    assert sentence in reply.error
    assert "\n" not in reply.error
    assert ask(server, body=ONE).status == 200


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/v1/models/other:predict", 404, "there is no model 'other'; models are: ranker"),
        ("/v1/models/ranker/versions/8:predict", 404, "there is no version 8; versions are: 7"),
        ("/v1/models/ranker/labels/stable:predict", 404, "there is no label 'stable'; labels are: none"),
        ("/v1/models/ranker:classify", 501, "classify is not answered here; use :predict"),
        ("/v1/models/ranker:explain", 404, "there is nothing at this path"),
        ("/v2/models", 404, "there is nothing at this path"),
        ("/v1/models/ranker", 405, "status takes GET, got POST"),
    ],
)
def test_unknown_places_are_refused(server: ModelServer, path: str, status: int, sentence: str) -> None:
    reply = ask(server, path, ONE)
    assert (reply.status, sentence in reply.error) == (status, True)


def test_an_unknown_signature_is_not_found(server: ModelServer) -> None:
    reply = ask(server, body={"signature_name": "other", **ONE})
    assert (reply.status, reply.error[:45]) == (404, "model 'ranker': there is no signature 'other'")


def test_versions_and_labels_choose_the_model(server: ModelServer, registry: ModelRegistry) -> None:
    registry.add("ranker", SmallModel(export=9))
    assert json.loads(ask(server, body=ONE).headers["x-model-version"])["export"] == 9
    registry.set_label("ranker", "stable", 7)
    assert json.loads(ask(server, body=ONE).headers["x-model-version"])["export"] == 7
    canary = ask(server, "/v1/models/ranker/versions/9:predict", ONE)
    assert json.loads(canary.headers["x-model-version"])["export"] == 9
    status = ask(server, "/v1/models/ranker").body["model_version_status"]
    assert [(each["version"], each["state"], each["labels"]) for each in status] == [
        ("7", "AVAILABLE", ["stable"]),
        ("9", "AVAILABLE", []),
    ]
    assert len(ask(server, "/v1/models/ranker/labels/stable").body["model_version_status"]) == 1


def test_metadata_names_types_and_shapes(server: ModelServer) -> None:
    body = ask(server, "/v1/models/ranker/metadata").body
    assert body["model_spec"] == {"name": "ranker", "signature_name": "", "version": "7"}
    signature = body["metadata"]["signature_def"]["signature_def"]["vector"]
    assert signature["inputs"]["vector"]["dtype"] == "DT_FLOAT"
    assert [dim["size"] for dim in signature["inputs"]["vector"]["tensor_shape"]["dim"]] == ["-1", "3"]


def test_readiness_reports_why_not(server: ModelServer, model: SmallModel) -> None:
    assert ask(server, "/readyz").status == 200
    model.is_ready, model.why_not_ready = False, "the log at /gone is not there"
    reply = ask(server, "/readyz")
    assert (reply.status, reply.error) == (503, "model 'ranker', version 7: the log at /gone is not there")
    assert ask(server, "/healthz").status == 200
    assert ask(server, body=ONE).status == 200, "it serves on"


def test_a_model_whose_trainer_is_silent_is_not_ready(model: SmallModel) -> None:
    registry = ModelRegistry(max_staleness_seconds=60.0)
    registry.add("ranker", model)
    with ModelServer(registry) as server:
        assert ask(server, "/readyz").status == 200
        assert model.staleness is not None
        model.staleness = model.staleness._replace(now=61.0)
        reply = ask(server, "/readyz")
        assert reply.status == 503
        assert "newest event that it has learned from is 61 s old, at most 60 s expected" in reply.error
        model.staleness = None
        assert ask(server, "/readyz").status == 200


def test_a_failure_of_the_model_is_no_secret_of_it(server: ModelServer, model: SmallModel) -> None:
    def fail() -> None:
        raise RuntimeError("weights at 0xdeadbeef")

    model.before = fail
    reply = ask(server, body=ONE)
    assert (reply.status, reply.error) == (500, "the model failed: RuntimeError; see the log of the server")


def test_an_answer_that_is_not_a_number_is_no_answer(server: ModelServer, model: SmallModel) -> None:
    model._score = lambda inputs: torch.full((1,), torch.nan)  # type: ignore[method-assign]
    reply = ask(server, body=ONE)
    assert (reply.status, reply.error) == (500, "output 'score': the model answered NaN or an infinity")


def test_a_model_that_hangs_ends_no_later_than_the_deadline(server: ModelServer, model: SmallModel) -> None:
    release = threading.Event()
    model.before = lambda: release.wait(60) or None  # type: ignore[assignment]
    try:
        reply = ask(server, body=ONE, x_timeout_ms="50")
        assert (reply.status, "was not answered within" in reply.error) == (504, True)
    finally:
        release.set()
    assert ask(server, body=ONE, x_timeout_ms="0").status == 400


def test_a_model_that_is_taken_away_is_closed_when_its_requests_are_answered(
    server: ModelServer, registry: ModelRegistry, model: SmallModel
) -> None:
    begun, release = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        release.wait(60)

    model.before = hold
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(ask(server, body=ONE)))
    thread.start()
    assert begun.wait(60)
    registry.add("ranker", SmallModel(export=8))
    registry.remove("ranker", 7)
    assert not model.closed.is_set()
    release.set()
    thread.join()
    assert replies[0].status == 200
    assert model.closed.wait(60)
