"""Overhead of a server in addition to its model, over HTTP and gRPC: CPU time of its process."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import torch

from benchmarks.suites.serving.cpu_turns import take_cpu_turns
from benchmarks.suites.serving.load_client import encoded_http_request
from benchmarks.suites.serving.served_deepfm import CANDIDATES, encoded_request
from benchmarks.suites.serving.served_process import AnsweringModel, client_and_one_core, running_server
from monolith.cli._bench import ours
from monolith.cli._bench.measurement import Measurement, Sense, spread
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.tensor_messages import message_of

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting
    from monolith.serving.server import ModelServer

NOTHING, REST, GRPC = "HTTP, GET /healthz", "REST, ExampleBatch", "gRPC, ExampleBatch"
LIMITS = {REST: 250.0, GRPC: 450.0}
_REQUESTS_AT_ONCE = 10
"""Requests between two reads of the clock, so that the client's pipe counts for little."""


def measure(setting: Setting) -> list[Measurement]:
    """Measures with a model that answers immediately; requests have the size of real ones."""
    ours.use_threads(1)
    scores = torch.rand(CANDIDATES, generator=torch.Generator().manual_seed(0))
    with client_and_one_core() as client, running_server(AnsweringModel(scores), grpc_port=0) as server:
        rest = encoded_http_request(encoded_request(0, setting.small_rows))
        grpc = grpc_request(encoded_request(0, setting.small_rows))
        port, grpc_port = _ports(server)
        contestants = {
            NOTHING: lambda _: client.get_in_turn(port, "/healthz", _REQUESTS_AT_ONCE),
            REST: lambda _: client.ask_in_turn(port, rest, _REQUESTS_AT_ONCE),
            GRPC: lambda _: client.ask_grpc_in_turn(grpc_port, grpc, _REQUESTS_AT_ONCE),
        }
        times = take_cpu_turns(contestants, setting, clock=time.process_time)
    own = {name: [each / _REQUESTS_AT_ONCE for each in found] for name, found in times.items()}
    return [
        Measurement(
            row="serving_server",
            measure=f"server without its model: {name}" + (f" of {CANDIDATES} candidates" if name in LIMITS else ""),
            figure=statistics.median(own[name]),
            unit="us",
            limit=LIMITS.get(name),
            sense=Sense.AT_MOST,
            note=f"processor time of the process; {spread(own[name])}",
        )
        for name in own
    ]


def grpc_request(encoded: bytes) -> bytes:
    """Returns a call of Predict that carries an ExampleBatch."""
    return messages.PredictRequest(
        model_spec=messages.ModelSpec(name="ranker"), inputs={"example_batch": message_of([encoded])}
    ).SerializeToString()


def _ports(server: ModelServer) -> tuple[int, int]:
    if server.port is None or server.grpc_port is None:
        raise RuntimeError("the server has no ports")
    return server.port, server.grpc_port
