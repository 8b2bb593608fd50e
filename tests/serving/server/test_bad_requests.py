"""Ten thousand wrong requests, slow clients and exports that cannot be used: always a sentence, and it answers on."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
import torch

from monolith.cli import main
from monolith.errors import OpError
from monolith.export.export_folder import ExportFolder
from monolith.export.writer import ExportConfig
from monolith.files import seal
from monolith.rpc.credentials import ServerCredentials
from monolith.serving import Predictor
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.server import LimitsConfig, ModelRegistry, ModelServer
from monolith.serving.server.grpc_service import GrpcService, service_handlers
from monolith.serving.server.http.message import HttpError, HttpRequest, HttpResponse, error_response
from monolith.serving.server.http.rest import RestApplication
from monolith.serving.tensor_messages import PREDICTION_SERVICE, message_of, path_of, value_of
from monolith.tensors import Ragged
from serving.server.fuzzed_requests import PATH, fuzzed_call, fuzzed_http
from serving.server.fuzzed_requests import HttpRequest as Fuzzed
from serving.small_models import make_batch, trained

PATIENCE = 60.0
COLUMNS = ("user", "item", "tags", "price", "ages")
NOT_FINITE = "the model answered NaN or an infinity"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    trained(2).export(str(folder / "1"), example=make_batch(0), options=ExportConfig(version=1))
    return folder / "1" / "1"


@pytest.fixture
def server(exported: Path) -> Iterator[ModelServer]:
    registry = ModelRegistry()
    registry.add("ranker", Predictor(str(exported)))
    with ModelServer(registry, grpc_port=0) as server:
        yield server
    registry.close()


def good_body() -> dict[str, Any]:
    batch = make_batch(3, 4)
    columns: dict[str, Any] = {name: batch[name] for name in COLUMNS}
    return {
        "inputs": {
            name: each.to_lists() if isinstance(each, Ragged) else each.tolist() for name, each in columns.items()
        }
    }


def good_inputs() -> dict[str, Any]:
    batch = make_batch(3, 4)
    found: dict[str, Any] = {}
    for name in COLUMNS:
        values: Any = batch[name]
        if isinstance(values, Ragged):
            found |= {f"{name}/values": values.flat_values, f"{name}/row_splits": values.row_splits}
        else:
            found[name] = values
    return found


def require_told(status: int, body: bytes) -> None:
    """An answer, or a sentence; 500 only where the page says so."""
    told = json.loads(body)
    if status == 200:
        return
    assert list(told) == ["error"]
    sentence = told["error"]
    assert sentence
    assert "\n" not in sentence
    assert len(sentence) <= 510
    assert status in {400, 404, 405, 413, 501} or (status == 500 and NOT_FINITE in sentence), (status, sentence)


class WithoutSocket:
    """A client of the application: what it is handed, and what it replies."""

    def __init__(self, application: RestApplication) -> None:
        self._application = application

    def ask(self, asked: Fuzzed) -> tuple[int, bytes]:
        headers = {name.lower().encode(): value.encode() for name, value in asked.headers.items()}
        request = HttpRequest(asked.method, asked.path, headers)
        request.body = asked.body
        replies: SimpleQueue[HttpResponse] = SimpleQueue()
        try:
            response = self._application.begin(request)
            if response is None:
                self._application.answer(request, replies.put)
                response = replies.get(timeout=PATIENCE)
        except (HttpError, OpError) as error:
            response = error_response(error)
        return response.status, response.body


@pytest.mark.slow
def test_five_thousand_fuzzed_requests_over_rest(server: ModelServer) -> None:
    good = good_body()
    fine = Fuzzed("POST", PATH, json.dumps(good).encode(), {})
    statuses: Counter[int] = Counter()
    client = WithoutSocket(RestApplication(server.core, ServerCredentials()))
    before = client.ask(fine)
    assert before[0] == 200
    for number in range(4700):
        status, body = client.ask(fuzzed_http(number, good))
        require_told(status, body)
        statuses[status] += 1
        if number % 100 == 0:
            assert client.ask(fine) == before
    assert client.ask(fine) == before
    # Through a socket, too: what a front end makes of them.
    connection = http.client.HTTPConnection("127.0.0.1", server.port or 0, timeout=PATIENCE)
    for number in range(4700, 5000):
        asked = fuzzed_http(number, good)
        connection.request(asked.method, asked.path, asked.body, asked.headers)
        response = connection.getresponse()
        require_told(response.status, response.read())
        statuses[response.status] += 1
    connection.close()
    assert statuses[400] > 2000
    assert statuses[404] > 100
    assert statuses[200] > 100, "some of them are harmless"


class AbortedCallError(Exception):
    """As gRPC ends a call."""


class Context:
    """What a call has, without a socket."""

    def __init__(self) -> None:
        self.code: Any = grpc.StatusCode.OK
        self.details = ""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> float:
        return PATIENCE

    def set_trailing_metadata(self, metadata: Any) -> None:
        pass

    def abort(self, code: Any, details: str) -> None:
        self.code, self.details = code, details
        raise AbortedCallError


REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}


@pytest.mark.slow
def test_five_thousand_fuzzed_calls_over_grpc(server: ModelServer) -> None:
    good = good_inputs()
    fine = messages.PredictRequest(
        model_spec=messages.ModelSpec(name="ranker"), inputs={name: message_of(each) for name, each in good.items()}
    ).SerializeToString()
    handlers = service_handlers(GrpcService(server.core), ServerCredentials())
    predict = next(
        found.unary_unary
        for handler in handlers
        if (found := handler.service(_Details(path_of(PREDICTION_SERVICE, "Predict")))) is not None
    )
    statuses: Counter[Any] = Counter()

    def call(data: bytes) -> tuple[Any, Any]:
        context = Context()
        try:
            answer = predict(data, context)
        except AbortedCallError:
            assert context.details
            assert "\n" not in context.details
            return context.code, context.details
        return context.code, {name: value_of(each) for name, each in answer.outputs.items()}

    _, before = call(fine)
    for number in range(4700):
        code, told = call(fuzzed_call(number, good))
        statuses[code] += 1
        assert code in REFUSED or code is grpc.StatusCode.OK, told
        if number % 100 == 0:
            assert all(torch.equal(each, before[name]) for name, each in call(fine)[1].items())
    by_socket = set()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        ask = channel.unary_unary(path_of(PREDICTION_SERVICE, "Predict"))
        for number in range(4700, 5000):
            try:
                ask(fuzzed_call(number, good), timeout=PATIENCE)
            except grpc.RpcError as error:
                by_socket.add(error.code())
        ask(fine, timeout=PATIENCE)
    assert by_socket == REFUSED
    assert all(torch.equal(each, before[name]) for name, each in call(fine)[1].items())
    assert min(statuses[each] for each in (*REFUSED, grpc.StatusCode.OK)) > 100


class _Details:
    """Which method is called."""

    invocation_metadata = ()

    def __init__(self, method: str) -> None:
        self.method = method


@pytest.mark.slow
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_client_that_drips_is_sent_away_by_the_limit(server: ModelServer, part: str) -> None:
    """Bytes that keep coming give no more time than bytes that do not come."""
    limits = LimitsConfig(head_seconds=0.3, body_seconds=0.3)
    head = f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n".encode()
    told = None
    with (
        ModelServer(server.core.registry, limits=limits) as dripped,
        socket.create_connection(("127.0.0.1", dripped.port or 0), timeout=PATIENCE) as client,
    ):
        client.sendall(head + (b"\r\n" if part == "body" else b"x: "))
        client.settimeout(0.02)
        for _ in range(int(PATIENCE / 0.02)):
            try:
                client.sendall(b"x")
                told = client.recv(65536)
                break
            except TimeoutError:
                continue
            except OSError:  # sent away while it was sending
                told = b""
                break
    assert told is not None
    assert told == b"" or told.startswith(b"HTTP/1.1 408")


def damage_weights(folder: Path) -> None:
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_bytes(seal(document))


def damage_schema(folder: Path) -> None:
    """Rows of another dim than those that were written."""

    def change(document: dict[str, Any]) -> None:
        table = document["stores"]["emb"]["4-adagrad"]
        table["schema"] = table["schema"].replace("segment=4,", "segment=5,")

    change_manifest(folder, change)


def damage_format(folder: Path) -> None:
    change_manifest(folder, lambda document: document.update(format_version=99))


def damage_graph(folder: Path) -> None:
    """A foreign operation, with a checksum that agrees."""
    (path,) = folder.glob("graph.*.json")
    text = path.read_text().replace("torch.ops.aten.", "torch.ops.evil.", 1)
    written = ExportFolder(str(folder)).write(path.name, text.encode())
    change_manifest(folder, lambda document: document["files"].update({path.name: written}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_weights, "weights.safetensors"),
        pytest.param(damage_schema, "4-adagrad", marks=pytest.mark.slow),
        pytest.param(damage_format, "version 99", marks=pytest.mark.slow),
        pytest.param(damage_graph, "evil", marks=pytest.mark.slow),
    ],
)
def test_an_unusable_export_is_rejected_and_a_server_keeps_the_one_before(
    exported: Path,
    damage: Callable[[Path], None],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(exported, tmp_path / "versions" / "1")
    shutil.copytree(exported, tmp_path / "bad" / "2")
    change_manifest(tmp_path / "bad" / "2", lambda document: document.update(version=2))
    damage(tmp_path / "bad" / "2")
    assert main(["serve", f"ranker={tmp_path / 'bad'}", "--port", "0"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("monolith serve: error: ")
    assert (told.count("\n"), words in told) == (1, True), told
    registry = ModelRegistry()
    predictor = Predictor(str(tmp_path / "versions"))
    registry.add("ranker", predictor)
    with ModelServer(registry) as server:
        shutil.move(tmp_path / "bad" / "2", tmp_path / "versions" / "2")
        pause = threading.Event()
        for _ in range(int(PATIENCE / 0.05)):
            if predictor.problem is not None:
                break
            pause.wait(0.05)
        assert words in str(predictor.problem)
        assert "\n" not in str(predictor.problem)
        connection = http.client.HTTPConnection("127.0.0.1", server.port or 0, timeout=PATIENCE)
        connection.request("POST", PATH, json.dumps(good_body()))
        response = connection.getresponse()
        assert (response.status, json.loads(response.headers["x-model-version"])["export"]) == (200, 1)
        connection.close()
    registry.close()
