"""Many small requests to one server, over REST and gRPC: its resources must not grow."""

from __future__ import annotations

import http.client
import importlib
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.server import ModelRegistry, ModelServer
from monolith.serving.tensor_messages import PREDICTION_SERVICE, message_of, path_of
from monolith.testing.small_model import SmallModel
from system.attack.attempt import Attempt
from system.attack.holdings import Holdings

REQUESTS_PER_ATTEMPT = 1000
"""Half of them over REST, half over gRPC."""
_PATIENCE_SECONDS = 60.0
_PER_CONNECTION = 50
"""Requests per HTTP connection, before another one is opened."""
_SPARE = {"spare_objects": 4000, "spare_threads": 16, "spare_descriptors": 4}
"""Allowance for resources that fluctuate: garbage of the last requests, threads that gRPC starts for concurrent calls,
closing connections. A leak of one object per fifty of 200,000 requests would exceed it.
"""
_PATH = "/v1/models/ranker:predict"


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Sends valid requests, some with texts and some that are rejected; checks resources after every thousand."""
    draw = random.Random(f"{seed} traffic")  # noqa: S311 - to repeat, not secrets
    torch.set_num_threads(1)
    grpc = importlib.import_module("grpc")
    registry = ModelRegistry()
    registry.add("ranker", SmallModel())
    with (
        ModelServer(registry, grpc_port=0) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        ask = channel.unary_unary(path_of(PREDICTION_SERVICE, "Predict"))
        for _ in range(2):  # fills the caches of libraries
            _thousand(draw, server.port or 0, ask, grpc)
        before = Holdings.now()
        for number in itertools.count(1):
            wrong = _thousand(draw, server.port or 0, ask, grpc)
            now = Holdings.now()
            problem = now.grown_since(before, **_SPARE)
            problem = f"{wrong} requests were answered wrongly" if wrong else problem
            outcome = f"{REQUESTS_PER_ATTEMPT} requests"
            what = f"after {number * REQUESTS_PER_ATTEMPT} requests, {now} where {before} was"
            yield Attempt(what, outcome, problem)


def _thousand(draw: random.Random, port: int, ask: Any, grpc: Any) -> int:
    """Returns how many of a thousand requests were not answered correctly."""
    wrong = 0
    for _ in range(REQUESTS_PER_ATTEMPT // 2 // _PER_CONNECTION):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_SECONDS)
        wrong += sum(not _by_rest(draw, connection) for _ in range(_PER_CONNECTION))
        connection.close()
    return wrong + sum(not _by_grpc(draw, ask, grpc) for _ in range(REQUESTS_PER_ATTEMPT // 2))


def _by_rest(draw: random.Random, connection: http.client.HTTPConnection) -> bool:
    body: dict[str, Any] = {"instances": [{"tags": [draw.getrandbits(20) + 14, 3], "weight": 0.5}]}
    kind = draw.randrange(10)
    if kind < 4:
        body = {"signature_name": "named", "instances": [{"tags": f"a|{draw.getrandbits(40)}", "weight": 1}]}
    elif kind == 4:
        body["instances"][0]["tags"] = None
    connection.request("POST", _PATH, json.dumps(body))
    response = connection.getresponse()
    response.read()
    return response.status == (400 if kind == 4 else 200)


def _by_grpc(draw: random.Random, ask: Any, grpc: Any) -> bool:
    request = messages.PredictRequest(model_spec=messages.ModelSpec(name="ranker", signature_name="named"))
    kind = draw.randrange(10)
    tags: Any = [b"a", b"%d" % draw.getrandbits(40)] if kind < 5 else torch.tensor([draw.getrandbits(20) + 14, 3])
    request.inputs["tags"].CopyFrom(message_of(tags))
    request.inputs["weight"].CopyFrom(message_of(torch.ones(3 if kind == 9 else 2)))
    try:
        ask(request.SerializeToString(), timeout=_PATIENCE_SECONDS)
    except grpc.RpcError as error:
        return kind == 9 and error.code() is grpc.StatusCode.INVALID_ARGUMENT
    return kind != 9
