"""Measures what a server of models costs beside its models, and what it does with three times too much load.

    python benchmarks/serving.py                # both, about a minute
    python benchmarks/serving.py --quick        # does it run?
    python benchmarks/serving.py --json

The model answers at once in the first part, so that what is measured is the server: processor time of its process for
a request of 100 candidates and 26 columns, beside that of a request that asks nothing (`/healthz`), which is what
uvicorn and Python's sockets cost. In the second part the model takes 10 ms a call and requests are not put together:
first as many requests come as it can answer, then three times as many. Clients are a process of their own. Wall time in
the second part: a machine that does other things shows it.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import multiprocessing
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import grpc
import torch

from monolith.data.protos.example_pb2 import ExampleBatch
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.server import ModelRegistry, ModelServer, QueueRules
from monolith.serving.tensor_messages import message_of
from monolith.serving.wire_methods import PREDICTION_SERVICE, path_of
from monolith.testing import SmallModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CANDIDATES, _COLUMNS = 100, 26
_PATH = "/v1/models/ranker:predict"
_CALL_SECONDS = 0.01
_AIMS = {"REST, ExampleBatch": 250, "gRPC, ExampleBatch": 450}
_WARM = 100


class _Column(NamedTuple):
    kind: str = "ids"
    dtype: str = "int64"
    shape: tuple[int | None, ...] = (None,)
    ragged: bool = False


class _Columns(NamedTuple):
    inputs: dict[str, _Column]
    outputs: dict[str, Any]


class AnsweringModel(SmallModel):
    """Answers 100 numbers, after some time that it spends without the interpreter's lock."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self._answer = super().predict({"examples": [b""] * _CANDIDATES})
        self._seconds = seconds
        columns = _Columns({f"column_{number}": _Column() for number in range(_COLUMNS)}, {})
        self.signatures = {**self.signatures, "columns": columns}  # type: ignore[dict-item]  # the same members

    def predict(self, inputs: Any, signature: str = "serving_default") -> Any:  # noqa: ARG002 - the interface
        """The same for everything."""
        if self._seconds:
            time.sleep(self._seconds)
        return self._answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="of each kind in the first part (default: 2000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load in the second part (default: 10)")
    parser.add_argument("--quick", action="store_true", help="a few requests: does it run?")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    args = parser.parse_args(arguments)
    sys.setswitchinterval(0.0005)  # as the command does
    with Client() as client:  # before anything has threads, as it is a fork
        found = {
            "microseconds": measure_costs(client, 20 if args.quick else args.requests),
            "overload": measure_overload(client, 0.5 if args.quick else args.seconds),
        }
    sys.stdout.write((json.dumps(found) if args.json else _tables(found)) + "\n")
    return 0


def measure_costs(client: Client, requests: int) -> dict[str, float]:
    """Processor time of the server for a request of each kind, in microseconds."""
    registry = ModelRegistry()
    registry.add("ranker", AnsweringModel())
    found = {}
    with ModelServer(registry, grpc_port=0) as server:
        for kind in _KINDS:
            client.call("_ask_in_turn", kind, server.port, server.grpc_port, _WARM)
            begin = time.process_time()
            client.call("_ask_in_turn", kind, server.port, server.grpc_port, requests)
            found[kind] = round(1e6 * (time.process_time() - begin) / requests, 1)
    registry.close()
    return found


def measure_overload(client: Client, seconds: float) -> dict[str, dict[str, float]]:
    """What becomes of requests at the rate that can be answered, and at three times that rate."""
    registry = ModelRegistry()
    registry.add("ranker", AnsweringModel(_CALL_SECONDS))
    found = {}
    with ModelServer(registry, queue=QueueRules(batch_examples=1, max_wait_seconds=0.05)) as server:
        for name, factor in (("as much as can be answered", 0.9), ("three times too much", 3.0)):
            found[name] = client.call("_ask_on_time", server.port, factor / _CALL_SECONDS, seconds)
    registry.close()
    return found


class Client:
    """A process that asks; a context manager."""

    def __init__(self) -> None:
        forking = multiprocessing.get_context("fork")
        self._pipe, theirs = forking.Pipe()
        self._process = forking.Process(target=_serve_calls, args=(theirs,), daemon=True)
        self._process.start()

    def call(self, name: str, *arguments: object) -> Any:
        """What a function of this file returns there."""
        self._pipe.send((name, arguments))
        found = self._pipe.recv()
        if isinstance(found, Exception):
            raise found
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join()


def _serve_calls(pipe: Any) -> None:
    while (asked := pipe.recv()) is not None:
        name, arguments = asked
        try:
            pipe.send(globals()[name](*arguments))
        except Exception as error:  # noqa: BLE001 - raised again where it was asked for
            pipe.send(error)


def _ask_in_turn(kind: str, port: int, grpc_port: int, requests: int) -> None:
    key = (kind, port)
    ask = _ASKS[key] = _ASKS.get(key) or _KINDS[kind](port, grpc_port)
    for _ in range(requests):
        ask()


def _encoded() -> bytes:
    batch = ExampleBatch(batch_size=_CANDIDATES)
    for number in range(_COLUMNS):
        column = batch.named_feature_list.add(name=f"column_{number}")
        for candidate in range(_CANDIDATES):
            column.feature.add().fid_v2_list.value.append(1000 * number + candidate)
    return batch.SerializeToString()


def _http(port: int, body: str | None) -> Callable[[], None]:
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask() -> None:
        connection.request("GET" if body is None else "POST", "/healthz" if body is None else _PATH, body)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(text.decode())

    return ask


def _http_bytes(port: int, _: int) -> Callable[[], None]:
    encoded = base64.b64encode(_encoded()).decode()
    return _http(port, json.dumps({"inputs": {"example_batch": {"b64": encoded}}}))


def _http_columns(port: int, _: int) -> Callable[[], None]:
    columns = {f"column_{number}": list(range(_CANDIDATES)) for number in range(_COLUMNS)}
    return _http(port, json.dumps({"signature_name": "columns", "inputs": columns}))


def _http_rows(port: int, _: int) -> Callable[[], None]:
    rows = [{f"column_{number}": candidate for number in range(_COLUMNS)} for candidate in range(_CANDIDATES)]
    return _http(port, json.dumps({"signature_name": "columns", "instances": rows}))


def _grpc(inputs: dict[str, Any], port: int, signature: str = "") -> Callable[[], None]:
    request = messages.PredictRequest(
        model_spec=messages.ModelSpec(name="ranker", signature_name=signature),
        inputs={name: message_of(value) for name, value in inputs.items()},
    ).SerializeToString()
    call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(path_of(PREDICTION_SERVICE, "Predict"))
    return lambda: call(request)


def _grpc_columns(_: int, port: int) -> Callable[[], None]:
    ids = torch.arange(_CANDIDATES)
    return _grpc({f"column_{number}": ids for number in range(_COLUMNS)}, port, "columns")


_KINDS: dict[str, Callable[[int, int], Callable[[], None]]] = {
    "HTTP that asks nothing": lambda port, _: _http(port, None),
    "REST, ExampleBatch": _http_bytes,
    "REST, columns": _http_columns,
    "REST, rows": _http_rows,
    "gRPC, ExampleBatch": lambda _, port: _grpc({"example_batch": [_encoded()]}, port),
    "gRPC, columns": _grpc_columns,
}


_ASKS: dict[tuple[str, int], Callable[[], None]] = {}
"""Of the process that asks: kind and port to an open connection."""


def _ask_on_time(port: int, rate: float, seconds: float, threads: int = 64) -> dict[str, float]:
    """So many requests a second, each at its time, whatever became of those before it."""
    body = json.dumps({"inputs": {"example_batch": {"b64": base64.b64encode(_encoded()).decode()}}})
    accepted: list[float] = []
    refused: list[float] = []
    start = time.perf_counter() + 1.0

    def ask(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for number in range(first, int(rate * seconds), threads):
            time.sleep(max(0.0, start + number / rate - time.perf_counter()))
            begin = time.perf_counter()
            connection.request("POST", _PATH, body)
            response = connection.getresponse()
            response.read()
            (accepted if response.status == 200 else refused).append(time.perf_counter() - begin)

    asking = [threading.Thread(target=ask, args=(first,)) for first in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    took = time.perf_counter() - start
    return {
        "offered_per_second": round((len(accepted) + len(refused)) / took, 1),
        "answered_per_second": round(len(accepted) / took, 1),
        "answered_p50_ms": _percentile(accepted, 0.5),
        "answered_p99_ms": _percentile(accepted, 0.99),
        "refused_p50_ms": _percentile(refused, 0.5),
        "refused_p99_ms": _percentile(refused, 0.99),
    }


def _percentile(seconds: list[float], share: float) -> float:
    return round(1e3 * sorted(seconds)[int(share * (len(seconds) - 1))], 2) if seconds else 0.0


def _tables(found: dict[str, Any]) -> str:
    lines = ["| Request of 100 candidates, 26 columns | processor time of the server | aim |", "|---|---|---|"]
    lines += [f"| {kind} | {cost:.0f} us | {_AIMS.get(kind, '-')} |" for kind, cost in found["microseconds"].items()]
    lines += ["", "| Load | offered/s | answered/s | answers: p50, p99 | refusals: p50, p99 |", "|---|---|---|---|---|"]
    for name, each in found["overload"].items():
        answers = f"{each['answered_p50_ms']}, {each['answered_p99_ms']} ms"
        refusals = f"{each['refused_p50_ms']}, {each['refused_p99_ms']} ms"
        rates = f"{each['offered_per_second']} | {each['answered_per_second']}"
        lines.append(f"| {name} | {rates} | {answers} | {refusals} |")
    few, many = (each["answered_per_second"] for each in found["overload"].values())
    return "\n".join([*lines, "", f"goodput of overload: {many / few:.2f} x (0.9 must be)"])


if __name__ == "__main__":
    sys.exit(main())
