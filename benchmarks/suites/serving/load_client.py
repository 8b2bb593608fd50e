"""A client process of a server, so that the CPU time of the server's process is the server's alone.

It is forked before the process that measures has threads, and may have cores of its own.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from monolith.serving.tensor_messages import PREDICTION_SERVICE, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PREDICT = "/v1/models/ranker:predict"
_CONNECTIONS = 64
"""Number of connections of a load that does not wait for responses."""
_OK, _OVERLOADED = 200, 429


class Load(NamedTuple):
    """Outcome of requests that were sent on schedule; times in ms."""

    offered: float
    """Requests a second, as they were sent."""
    answered: float
    """Answers a second."""
    p50: float
    p99: float
    refused: int
    refused_p99: float
    latest: float
    """99th percentile of the client's own send delay."""

    def __str__(self) -> str:
        refusals = f", {self.refused} refused with p99 {self.refused_p99:.3g} ms" if self.refused else ""
        return (
            f"{self.offered:.0f}/s sent, {self.answered:.0f}/s answered, p50 {self.p50:.3g} ms, p99 {self.p99:.3g} ms"
            f"{refusals}"
        )


class LoadClient:
    """The process; a context manager. One thread uses it.

    Args:
        cores: Those that it may use; None: all.
    """

    def __init__(self, cores: Sequence[int] | None = None) -> None:
        forking = multiprocessing.get_context("fork")
        self._pipe, theirs = forking.Pipe()
        self._process = forking.Process(target=_serve_calls, args=(theirs, cores), daemon=True)
        self._process.start()

    def get_in_turn(self, port: int, path: str, requests: int) -> None:
        """Sends `requests` requests without a body, one after the other."""
        self._call(_ask_in_turn, port, http_request(path), requests)

    def ask_in_turn(self, port: int, request: bytes, requests: int) -> None:
        """Sends `requests` requests, one after the other."""
        self._call(_ask_in_turn, port, request, requests)

    def ask_grpc_in_turn(self, port: int, request: bytes, requests: int) -> None:
        """Makes `requests` calls of Predict with the bytes of its message, one after the other."""
        self._call(_ask_grpc_in_turn, port, request, requests)

    def ask_always(self, port: int, request: bytes, seconds: float, *, connections: int) -> float:
        """Returns responses per second; each connection sends again as soon as it is answered or refused."""
        found: float = self._call(_ask_always, port, request, seconds, connections)
        return found

    def ask_on_time(self, port: int, request: bytes, rate: float, seconds: float) -> Load:
        """Sends `rate` requests per second on schedule, independent of the outcome of earlier ones."""
        found: Load = self._call(_ask_on_time, port, request, rate, seconds)
        return found

    def _call(self, function: Callable[..., Any], *arguments: object) -> Any:
        self._pipe.send((function, arguments))
        found = self._pipe.recv()
        if isinstance(found, Exception):
            raise found
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join()


def http_request(path: str, body: bytes | None = None) -> bytes:
    """Returns the bytes of a request over HTTP."""
    if body is None:
        return f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode()
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def encoded_http_request(encoded: bytes, path: str = PREDICT) -> bytes:
    """Returns a request over HTTP that carries an ExampleBatch."""
    text = base64.b64encode(encoded).decode()
    return http_request(path, json.dumps({"inputs": {"example_batch": {"b64": text}}}).encode())


class _Connection:
    """An open HTTP connection that repeats the same request, with minimal work for the client."""

    def __init__(self, port: int, request: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request

    def ask(self) -> int:
        """Returns the status of the answer."""
        self._socket.sendall(self._request)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._received()
        head = data[:end].lower()
        left = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) - (len(data) - end - 4)
        while left > 0:
            left -= len(self._received())
        return int(head[9:12])

    def close(self) -> None:
        """Ends it."""
        self._socket.close()

    def _received(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data


def _serve_calls(pipe: Any, cores: Sequence[int] | None) -> None:
    if cores is not None:
        os.sched_setaffinity(0, cores)
    while (asked := pipe.recv()) is not None:
        function, arguments = asked
        try:
            pipe.send(function(*arguments))
        except Exception as error:  # noqa: BLE001 - raised again in the caller
            pipe.send(error)


_ASKS: dict[tuple[int, bytes], Callable[[], object]] = {}
"""Open connections of the client process."""


def _ask_in_turn(port: int, request: bytes, requests: int) -> None:
    connection = _Connection(port, request)  # a new one: the server ends those that rest for the turns of others
    for _ in range(requests):
        if not _is_answer(connection.ask()):
            raise RuntimeError("the server refused for overload")
    connection.close()


def _ask_grpc_in_turn(port: int, request: bytes, requests: int) -> None:
    import grpc  # noqa: PLC0415 - by this process alone: gRPC does not like to be forked

    ask = _ASKS.get((port, request))
    if ask is None:
        call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(path_of(PREDICTION_SERVICE, "Predict"))
        ask = _ASKS[port, request] = lambda: call(request)
    for _ in range(requests):
        ask()


def _ask_always(port: int, request: bytes, seconds: float, connections: int) -> float:
    counts = [0] * connections
    begin = time.perf_counter()

    def ask(place: int) -> None:
        connection = _Connection(port, request)
        while time.perf_counter() - begin < seconds:
            counts[place] += _is_answer(connection.ask())

    _in_threads(connections, ask)
    return sum(counts) / (time.perf_counter() - begin)


def _ask_on_time(port: int, request: bytes, rate: float, seconds: float) -> Load:
    accepted, refused, late = list[float](), list[float](), list[float]()
    count = max(1, int(rate * seconds))
    start = time.perf_counter() + 0.5

    def ask(first: int) -> None:
        connection = _Connection(port, request)
        for number in range(first, count, _CONNECTIONS):
            due = start + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            begin = time.perf_counter()
            late.append(begin - due)
            is_answer = _is_answer(connection.ask())
            (accepted if is_answer else refused).append(time.perf_counter() - begin)

    _in_threads(_CONNECTIONS, ask)
    took = time.perf_counter() - start
    return Load(
        offered=(len(accepted) + len(refused)) / took,
        answered=len(accepted) / took,
        p50=_ms(accepted, 50),
        p99=_ms(accepted, 99),
        refused=len(refused),
        refused_p99=_ms(refused, 99),
        latest=_ms(late, 99),
    )


def _is_answer(status: int) -> bool:
    if status not in {_OK, _OVERLOADED}:
        raise RuntimeError(f"the server answered {status}")
    return status == _OK


def _in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[Exception] = []

    def run(place: int) -> None:
        try:
            work(place)
        except Exception as error:  # noqa: BLE001 - raised by the waiting thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _ms(seconds: list[float], percent: float) -> float:
    return 1e3 * float(np.percentile(seconds, percent, method="higher")) if seconds else 0.0
