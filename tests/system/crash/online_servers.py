"""The servers of an online tree: their ports, export and arguments; clients over REST and over gRPC."""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from monolith.rpc import load_grpc
from monolith.serving import export
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.tensor_messages import PREDICTION_SERVICE, message_of, path_of, value_of
from monolith.train import Session
from system.crash.online_events import NUM_ITEMS
from system.crash.processes import Tell, result_of
from system.crash.stream_task import COLUMNS, StreamCountingTask

SERVERS = ("server-0", "server-1")
MODEL = "counts"
_PORTS = range(15_000, 32_000)
"""Below the ephemeral ports: no client connection may occupy the port of a stopped server."""
_TRIES = 1000
_PATIENCE_MS = 60_000
"""Queue timeout: a busy machine must not look like an overload."""
_HOST = "127.0.0.1"
_SECONDS = 20.0
"""Timeout of a request: nothing here may hang."""
_VERSION = "x-model-version"


class ServerPorts(NamedTuple):
    """Ports of a server, the same after each restart."""

    http: int
    grpc: int

    @classmethod
    def draw(cls) -> ServerPorts:
        """Draws two free ports."""
        found: set[int] = set()
        draw = random.SystemRandom()
        for _ in range(_TRIES):
            port = draw.choice(_PORTS)
            if _is_free(port):
                found.add(port)
            if len(found) == len(cls._fields):
                return cls(*found)
        raise OSError(f"no free port from {_PORTS.start} to {_PORTS.stop}")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def export_untrained(folder: Path) -> None:
    """Exports the untrained model: all rows of servers come from the log."""
    result_of(partial(_export, folder))


def _export(folder: Path, tell: Tell) -> dict[str, Any]:
    torch.set_num_threads(1)
    with Session(StreamCountingTask(), mode="predict") as session:
        export(session, str(folder), example=dict.fromkeys(COLUMNS, torch.arange(2)))
    return {}


def serve_arguments(export: Path, log: str, ports: ServerPorts) -> list[str]:
    """Returns arguments of ``monolith serve``."""
    places = [f"--follow={log}", f"--port={ports.http}", f"--grpc_port={ports.grpc}"]
    return ["serve", f"{MODEL}={export}", *places, f"--max_wait_ms={_PATIENCE_MS}", "--json"]


class AskingError(Exception):
    """A request got no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows and weights of an answer."""

    event: dict[int, float] = field(default_factory=dict)
    """Event -> its row."""
    passing: dict[int, float] = field(default_factory=dict)
    whole: dict[int, list[float]] = field(default_factory=dict)
    """Item -> all columns of its row."""
    taste: dict[int, float] = field(default_factory=dict)
    total: float = 0.0
    """The dense weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request to a server."""

    request: int | None
    """Number of the client's request; None: a poll of one server."""
    server: str
    over: str
    sent: float
    came: float
    """When it was sent and when the answer arrived, on the monotonic clock of the machine."""
    error: str | None = None
    """Why there was no answer."""
    export: int = -1
    dense: int = -1
    sparse: dict[str, int] = field(default_factory=dict)
    """The version of the answer."""
    rows: Rows = field(default_factory=Rows)

    def to_line(self) -> bytes:
        """Returns the record as a line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Asked:
        """Parses a line of `to_line`."""
        found = json.loads(line)
        rows = found.pop("rows")
        columns = {name: {int(key): value for key, value in rows[name].items()} for name in _COLUMN_IDS}
        return cls(**found, rows=Rows(**columns, total=rows["total"]))


_COLUMN_IDS = {"event": "events", "passing": "events", "whole": "items", "taste": "items"}
"""Column -> kind of its ids."""


class Line(Protocol):
    """A connection to one server, re-established after an error. Not thread-safe."""

    over: str

    def ask(self, events: Sequence[int]) -> tuple[dict[str, Any], Rows]:
        """Requests rows of some events, or of all items without events; returns the version and the rows.

        Raises:
            AskingError: there was no answer.
        """
        ...

    def close(self) -> None:
        """Closes the connection."""
        ...


class RestLine:
    """A connection over HTTP, kept alive for all requests."""

    over = "rest"

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(_HOST, port, timeout=_SECONDS)

    def ask(self, events: Sequence[int]) -> tuple[dict[str, Any], Rows]:
        """Requests rows; see `Line.ask`."""
        columns = _columns(events)
        body = json.dumps({"inputs": columns})
        response, answer = self._call("POST", f"/v1/models/{MODEL}:predict", body)
        if response.status != http.client.OK:
            raise AskingError(f"{response.status}: {answer}")
        return json.loads(response.headers[_VERSION]), _rows(columns, answer["outputs"])

    def why_not_ready(self) -> str | None:
        """Returns the reason that ``/readyz`` reports, or None if the server is ready.

        Raises:
            AskingError: the server does not answer.
        """
        response, answer = self._call("GET", "/readyz", None)
        return None if response.status == http.client.OK else str(answer["error"])

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _call(self, method: str, path: str, body: str | None) -> tuple[http.client.HTTPResponse, Any]:
        try:
            self._connection.request(method, path, body)
            response = self._connection.getresponse()
            return response, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            raise AskingError(f"{type(error).__name__}: {error}") from error


class GrpcLine:
    """A connection over gRPC."""

    over = "grpc"

    def __init__(self, port: int) -> None:
        self._port = port
        self._channel: Any = None

    def ask(self, events: Sequence[int]) -> tuple[dict[str, Any], Rows]:
        """Requests rows; see `Line.ask`."""
        grpc = load_grpc()
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"{_HOST}:{self._port}")
        columns = _columns(events)
        inputs = {name: message_of(torch.tensor(values)) for name, values in columns.items()}
        request = messages.PredictRequest(model_spec=messages.ModelSpec(name=MODEL), inputs=inputs)
        method = self._channel.unary_unary(
            path_of(PREDICTION_SERVICE, "Predict"),
            request_serializer=messages.PredictRequest.SerializeToString,
            response_deserializer=messages.PredictResponse.FromString,
        )
        try:
            response, call = method.with_call(request, timeout=_SECONDS)
        except grpc.RpcError as error:
            self.close()
            raise AskingError(f"{error.code().name}: {error.details()}") from error
        version = next(value for name, value in call.trailing_metadata() if name == _VERSION)
        outputs = {name: torch.as_tensor(value_of(message)).tolist() for name, message in response.outputs.items()}
        return json.loads(version), _rows(columns, outputs)

    def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _columns(events: Sequence[int]) -> dict[str, list[int]]:
    """Returns the requested ids; a column of one stands for all examples."""
    ids = {"events": list(events) or [0], "items": [0] if events else list(range(NUM_ITEMS))}
    return {name: ids[of] for name, of in _COLUMN_IDS.items()}


def _rows(columns: dict[str, list[int]], outputs: dict[str, list[Any]]) -> Rows:
    shown = {name: dict(zip(ids, outputs[name], strict=False)) for name, ids in columns.items()}
    return Rows(**shown, total=outputs["total"][0])
