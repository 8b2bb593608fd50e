"""Overhead of a server in addition to its model, over HTTP and gRPC: CPU time of its process."""

from __future__ import annotations

import json
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import torch

from benchmarks.suites.serving.cpu_turns import take_cpu_turns
from benchmarks.suites.serving.load_client import PREDICT, encoded_http_request, http_request
from benchmarks.suites.serving.served_deepfm import CANDIDATES, NAMES, encoded_request, ids_of_a_slot
from benchmarks.suites.serving.served_process import AnsweringModel, client_and_one_core, running_server
from monolith.cli._bench import ours
from monolith.cli._bench.measurement import Measurement, Sense, spread
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.tensor_messages import message_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cli._bench.setting import Setting
    from monolith.serving.protos.tensor_pb2 import TensorProto
    from monolith.serving.server import ModelServer

NOTHING, REST, GRPC = "HTTP, GET /healthz", "REST, ExampleBatch", "gRPC, ExampleBatch"
REST_INPUTS, REST_INSTANCES, GRPC_COLUMNS = "REST, inputs", "REST, instances", "gRPC, columns"
LIMITS = {REST: 250.0, GRPC: 600.0}
_REQUESTS_AT_ONCE = 10
"""Requests between two reads of the clock, so that the client's pipe counts for little."""


def measure(setting: Setting) -> list[Measurement]:
    """Measures with a model that answers immediately; requests have the size of real ones."""
    ours.use_threads(1)
    scores = torch.rand(CANDIDATES, generator=torch.Generator().manual_seed(0))
    with client_and_one_core() as client, running_server(AnsweringModel(scores), grpc_port=0) as server:
        encoded, columns = encoded_request(0, setting.small_rows), _columns(setting.small_rows)
        port, grpc_port = _ports(server)
        rest = {
            REST: encoded_http_request(encoded),
            REST_INPUTS: _json_request({"inputs": {name: ids.tolist() for name, ids in columns.items()}}),
            REST_INSTANCES: _json_request(
                {"instances": [{name: int(ids[row]) for name, ids in columns.items()} for row in range(CANDIDATES)]}
            ),
        }
        grpc = {
            GRPC: grpc_request({"example_batch": message_of([encoded])}),
            GRPC_COLUMNS: grpc_request({name: message_of(ids) for name, ids in columns.items()}),
        }
        contestants: dict[str, Callable[[int], object]] = {
            NOTHING: lambda _: client.get_in_turn(port, "/healthz", _REQUESTS_AT_ONCE)
        }
        for name, request in rest.items():
            contestants[name] = partial(_ask, client.ask_in_turn, port, request)
        for name, request in grpc.items():
            contestants[name] = partial(_ask, client.ask_grpc_in_turn, grpc_port, request)
        times = take_cpu_turns(contestants, setting, clock=time.process_time)
    own = {name: [each / _REQUESTS_AT_ONCE for each in found] for name, found in times.items()}
    return [
        Measurement(
            row="serving_server",
            measure=f"server without its model: {name}" + ("" if name == NOTHING else f" of {CANDIDATES} candidates"),
            figure=statistics.median(own[name]),
            unit="us",
            limit=LIMITS.get(name),
            sense=Sense.AT_MOST,
            note=f"processor time of the process; {spread(own[name])}",
        )
        for name in own
    ]


def grpc_request(inputs: dict[str, TensorProto]) -> bytes:
    """Returns a call of Predict."""
    spec = messages.ModelSpec(name="ranker")
    return messages.PredictRequest(model_spec=spec, inputs=inputs).SerializeToString()


def _ask(ask: Callable[[int, bytes, int], None], port: int, request: bytes, _: int) -> None:
    ask(port, request, _REQUESTS_AT_ONCE)


def _json_request(document: dict[str, object]) -> bytes:
    return http_request(PREDICT, json.dumps(document).encode())


def _columns(num_rows: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return {name: torch.randint(ids_of_a_slot(num_rows), (CANDIDATES,), generator=random) for name in NAMES}


def _ports(server: ModelServer) -> tuple[int, int]:
    if server.port is None or server.grpc_port is None:
        raise RuntimeError("the server has no ports")
    return server.port, server.grpc_port
