"""Malformed requests to a model server: HTTP by bytes and by bodies, gRPC by messages."""

from __future__ import annotations

import base64
import importlib
import itertools
import json
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.server import LimitsConfig, ModelRegistry, ModelServer
from monolith.serving.tensor_messages import PREDICTION_SERVICE, message_of, path_of
from monolith.testing.small_model import SmallModel
from system.attack.attempt import Attempt
from system.attack.mutations import MUTATIONS

_PATIENCE_SECONDS = 60.0
"""A request that takes longer counts as hung."""
_PATH = "/v1/models/ranker:predict"
_BODIES: tuple[dict[str, Any], ...] = (
    {"instances": [{"tags": [1, 2], "weight": 0.5}, {"tags": [], "weight": 1}]},
    {"signature_name": "doubled", "inputs": {"tags": [[1], [2, 3]], "weight": [1, 2]}},
    {"signature_name": "named", "instances": [{"tags": "a|b", "weight": 1}, {"tags": ["c"], "weight": 2}]},
    {"signature_name": "named", "inputs": {"tags": ["a", {"b64": "YXxi"}], "weight": [1, 2]}},
    {"signature_name": "vector", "instances": [[1, 2, 3]]},
    {"signature_name": "text", "inputs": [{"b64": base64.b64encode(b"some bytes").decode()}]},
    {"inputs": {"example_batch": {"b64": base64.b64encode(b"\x0a\x02\x0a\x00\x18\x02").decode()}}},
    {"inputs": {"tags/values": [1, 2, 3], "tags/row_splits": [0, 1, 3], "weight": [0, 0]}},
)
_WORDS = (
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e999",
    b'"x"',
    b"[" * 5000,
    b"NaN",
    b"\xff",
    b"\0",
    b"9" * 400,
    b",",
    b"true",
)
_STATUSES = (b"200", b"400", b"404", b"405", b"408", b"413", b"429", b"501", b"503")
_CODES = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED")


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Sends malformed requests: answered, or rejected by a status and a message; occasionally a correct one."""
    del folder
    draw = random.Random(f"{seed} requests")  # noqa: S311 - to repeat, not secrets
    grpc = importlib.import_module("grpc")
    registry = ModelRegistry()
    registry.add("ranker", SmallModel())
    limits = LimitsConfig(head_seconds=0.1, body_seconds=0.1, body_bytes=100_000)
    with ModelServer(registry, grpc_port=0, limits=limits) as server:
        port = server.port or 0
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            ask = channel.unary_unary(path_of(PREDICTION_SERVICE, "Predict"))
            kinds: list[Callable[[], Attempt]] = [
                lambda: _by_body(draw, port),
                lambda: _by_body(draw, port),
                lambda: _by_bytes(draw, port),
                lambda: _by_message(draw, ask, grpc),
                lambda: _right(port),
            ]
            for _ in itertools.count():
                yield draw.choice(kinds)()


def _request(body: bytes, path: str = _PATH) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    )


def _by_body(draw: random.Random, port: int) -> Attempt:
    body = _spoilt(json.dumps(draw.choice(_BODIES)).encode(), draw)
    return _sent(port, _request(body), f"body {body[:200]!r}", needs_answer=True)


def _by_bytes(draw: random.Random, port: int) -> Attempt:
    request = _spoilt(_request(json.dumps(draw.choice(_BODIES)).encode()), draw)
    return _sent(port, request, f"bytes {request[:200]!r}", needs_answer=False)


def _right(port: int) -> Attempt:
    reply = _exchange(port, _request(json.dumps(_BODIES[0]).encode()))
    is_right = reply.startswith(b"HTTP/1.1 200 ") and reply.endswith(b'{"predictions":[3.5,1.0]}')
    return Attempt("a right request", "answered", None if is_right else f"it was answered {reply[:300]!r}")


def _sent(port: int, request: bytes, what: str, *, needs_answer: bool) -> Attempt:
    reply = _exchange(port, request)
    if not reply and not needs_answer:
        return Attempt(what, "HTTP: connection closed")
    status, body = reply[9:12], reply.partition(b"\r\n\r\n")[2]
    if not reply.startswith(b"HTTP/1.1 ") or status not in _STATUSES:
        return Attempt(what, "HTTP: wrong", f"it was answered {reply[:300]!r}")
    if status != b"200" and b'{"error": "' not in body:
        return Attempt(what, "HTTP: wrong", f"it was refused without a sentence: {reply[:300]!r}")
    return Attempt(what, f"HTTP: {status.decode()}")


def _exchange(port: int, request: bytes) -> bytes:
    """Returns the response until the server closes; b"" when it closes without a response."""
    parts = []
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_SECONDS) as client:
        try:
            client.sendall(request)
            while part := client.recv(65536):
                parts.append(part)
        except ConnectionError:
            pass  # the server did not read the complete request
    return b"".join(parts)


def _by_message(draw: random.Random, ask: Any, grpc: Any) -> Attempt:
    inputs: dict[str, torch.Tensor | list[bytes]] = draw.choice(
        [
            {"tags": torch.tensor([[1, 2], [3, 4]]), "weight": torch.ones(2)},
            {"tags/values": torch.tensor([1]), "tags/row_splits": torch.tensor([0, 1]), "weight": torch.ones(1)},
            {"tags": [b"a|b", b""], "weight": torch.ones(2)},
            {"tags/values": [b"a", b"b"], "tags/row_splits": torch.tensor([0, 2]), "weight": torch.ones(1)},
            {"example_batch": [b"\x0a\x02\x0a\x00\x18\x02"]},
        ]
    )
    message = messages.PredictRequest(
        model_spec=messages.ModelSpec(name="ranker", signature_name="named"),
        inputs={name: message_of(each) for name, each in inputs.items()},
    )
    data = _spoilt(message.SerializeToString(deterministic=True), draw)
    what = f"message {data[:200]!r}"
    try:
        ask(data, timeout=_PATIENCE_SECONDS)
    except grpc.RpcError as error:
        code = error.code().name
        is_told = code in _CODES and bool(error.details())
        return Attempt(what, f"gRPC: {code}", None if is_told else f"{code}: {error.details()}")
    return Attempt(what, "gRPC: OK")


def _spoilt(good: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        return draw.choice(list(MUTATIONS.values()))(bytearray(good), draw)
    begin = draw.randrange(len(good) + 1)
    return good[:begin] + draw.choice(_WORDS) + good[begin + draw.choice([0, 1, 4, 1000]) :]
