"""A server under load, with slow and unknown clients, and at its end."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest
import torch

from failing_once import FailingOnce
from hooks.server.certificates import make_certificate
from monolith.serving.server import LimitsConfig, ModelRegistry, ModelServer, RequestQueueConfig
from monolith.serving.server import server as server_module
from monolith.serving.server.http.front import _listen
from monolith.serving.server.metrics import ServingMetrics
from monolith.testing import SmallModel
from serving.server.test_grpc import RAGGED
from serving.server.test_grpc import call as call_grpc
from serving.server.test_grpc import request as grpc_request
from serving.server.test_rest import ONE, PATH, Reply, ask

PATIENCE = 60.0


class Held:
    """A model whose calls wait until they are let go."""

    def __init__(self, model: SmallModel) -> None:
        self.begun = threading.Semaphore(0)
        self.release = threading.Event()
        model.before = self._wait

    def _wait(self) -> None:
        self.begun.release()
        assert self.release.wait(PATIENCE)


@pytest.fixture
def model() -> SmallModel:
    return SmallModel()


@pytest.fixture
def start(model: SmallModel) -> Iterator[Callable[..., ModelServer]]:
    servers: list[ModelServer] = []
    registry = ModelRegistry()
    registry.add("ranker", model)

    def make(**options: Any) -> ModelServer:
        servers.append(ModelServer(registry, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def in_threads(count: int, work: Callable[[int], Any]) -> tuple[list[threading.Thread], list[Any]]:
    results: list[Any] = []
    threads = [threading.Thread(target=lambda each=each: results.append(work(each))) for each in range(count)]
    for thread in threads:
        thread.start()
    return threads, results


def wait_for(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)


def row(number: int) -> dict[str, Any]:
    return {"instances": [{"tags": [number], "weight": 0}]}


def test_requests_that_come_while_the_model_is_busy_are_answered_together(
    start: Callable[..., ModelServer], model: SmallModel
) -> None:
    server, held = start(), Held(model)
    threads, replies = in_threads(1, lambda _: ask(server, body=row(100)))
    assert held.begun.acquire(timeout=PATIENCE)
    more, others = in_threads(5, lambda number: (number, ask(server, body=row(number))))
    wait_for(lambda: server.core.threads.num_waiting == 5)
    held.release.set()
    for thread in threads + more:
        thread.join()
    assert replies[0].body == {"predictions": [100.0]}
    found = sorted((number, reply.body["predictions"]) for number, reply in others)
    assert found == [(number, [float(number)]) for number in range(5)]
    assert model.calls == [1, 5]


def test_the_expected_wait_of_a_request_counts_the_calls_before_it_at_their_measured_cost(
    start: Callable[..., ModelServer], model: SmallModel
) -> None:
    server = start(queue=RequestQueueConfig(batch_examples=1, max_wait_seconds=PATIENCE))
    model.before = lambda: time.sleep(0.2)
    assert ask(server, body=row(1)).status == 200
    held = Held(model)
    threads, _ = in_threads(1, lambda _: ask(server, body=row(2)))
    assert held.begun.acquire(timeout=PATIENCE)
    more, _ = in_threads(2, lambda number: ask(server, body=row(number)))
    wait_for(lambda: server.core.threads.num_waiting == 2)
    expected = server.core.threads.expected_wait_seconds
    held.release.set()
    for thread in threads + more:
        thread.join()
    assert expected >= 0.4


def test_a_call_of_a_model_computes_on_one_thread_and_others_keep_theirs(
    start: Callable[..., ModelServer], model: SmallModel
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen: list[int] = []
        model.before = lambda: seen.append(torch.get_num_threads())
        assert ask(start(), body=ONE).status == 200
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_a_model_thread_survives_an_error_of_its_own(
    start: Callable[..., ModelServer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(queue=RequestQueueConfig(threads=1))
    threads = server.core.threads
    answer = threads._answer

    def answer_and_fail(jobs: Any) -> bool:
        answer(jobs)
        raise RuntimeError("a bug")

    monkeypatch.setattr(threads, "_answer", answer_and_fail)
    assert [ask(server, body=ONE).status for _ in range(2)] == [200, 200]
    wait_for(lambda: str(threads._threads[0].last_error) == "a bug")
    assert "thread model-0 failed" in caplog.text


def test_a_wrong_request_spoils_none_that_is_answered_with_it(
    start: Callable[..., ModelServer], model: SmallModel
) -> None:
    server, held = start(), Held(model)
    first, _ = in_threads(1, lambda _: ask(server, body=row(100)))
    assert held.begun.acquire(timeout=PATIENCE)
    more, replies = in_threads(3, lambda number: (number, ask(server, body=row(12 + number)).status))
    wait_for(lambda: server.core.threads.num_waiting == 3)
    held.release.set()
    for thread in first + more:
        thread.join()
    assert sorted(replies) == [(0, 200), (1, 400), (2, 200)]


def test_overload_is_rejected_immediately_with_a_hint(start: Callable[..., ModelServer], model: SmallModel) -> None:
    server = start(grpc_port=0, queue=RequestQueueConfig(max_waiting=1))
    held = Held(model)
    threads, replies = in_threads(1, lambda _: ask(server, body=ONE))
    assert held.begun.acquire(timeout=PATIENCE)
    more, others = in_threads(1, lambda _: ask(server, body=ONE))
    wait_for(lambda: server.core.threads.num_waiting == 1)
    refused = ask(server, body=b"this is not even looked at")
    assert refused.status == 429
    assert int(refused.headers["retry-after-ms"]) >= 1
    assert "overloaded" in refused.error
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            call_grpc(channel, grpc_request(RAGGED))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(caught.value.trailing_metadata())["grpc-retry-pushback-ms"]) >= 1
    held.release.set()
    for thread in threads + more:
        thread.join()
    assert [reply.status for reply in replies + others] == [200, 200]


def test_an_ending_server_answers_what_it_has_and_is_not_ready(
    start: Callable[..., ModelServer], model: SmallModel
) -> None:
    server, held = start(grpc_port=0), Held(model)
    threads, replies = in_threads(1, lambda _: ask(server, body=ONE))
    assert held.begun.acquire(timeout=PATIENCE)
    kept = http.client.HTTPConnection("127.0.0.1", server.port or 0, timeout=PATIENCE)
    kept.request("GET", "/readyz")
    assert kept.getresponse().read() == b'{"status":"ok"}'
    ending = threading.Thread(target=server.close)
    ending.start()
    wait_for(lambda: server.core.is_ending and server.core.threads._queue.is_draining)
    kept.request("GET", "/readyz")
    assert json.loads(kept.getresponse().read()) == {"error": "the server is about to end"}
    kept.request("POST", PATH, json.dumps(ONE))
    response = kept.getresponse()
    assert (response.status, json.loads(response.read())["error"][:32]) == (503, "the server is about to end; ask ")
    kept.close()
    held.release.set()
    ending.join()
    threads[0].join()
    assert replies[0].status == 200
    with pytest.raises(ConnectionRefusedError):
        ask(server, body=ONE)


def read_all(client: socket.socket) -> bytes:
    client.settimeout(PATIENCE)
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    ("sent", "status", "sentence"),
    [
        (b"", b"408", b"the head did not come within"),
        (b"POST /v1/models/ranker:predict HTTP/1.1\r\nhost: a\r\n", b"408", b"the head did not come within"),
        (
            b"POST /v1/models/ranker:predict HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{",
            b"408",
            b"the body did not come within",
        ),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", b"400", b"its head is over 65536"),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400", b"is no HTTP/1.1"),
        (
            b"POST /v1/models/ranker:predict HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n\r\n{",
            b"413",
            b"a body may have 1000 bytes",
        ),
        (
            b"POST /v1/models/ranker:predict HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
            b"3e8\r\n" + b"x" * 1000 + b"\r\n" + b"3e8\r\n" + b"x" * 1000 + b"\r\n",
            b"413",
            b"a body may have 1000 bytes, got more",
        ),
    ],
    ids=["silent", "slow head", "slow body", "large head", "no HTTP", "large body", "endless body"],
)
def test_clients_that_are_slow_or_talkative_are_sent_away(
    start: Callable[..., ModelServer], sent: bytes, status: bytes, sentence: bytes
) -> None:
    server = start(limits=LimitsConfig(head_seconds=0.2, body_seconds=0.2, body_bytes=1000))
    with socket.create_connection(("127.0.0.1", server.port or 0), timeout=PATIENCE) as client:
        client.sendall(sent)
        reply = read_all(client)
    assert reply.startswith(b"HTTP/1.1 " + status)
    assert sentence in reply
    assert ask(server, body=ONE).status == 200


def test_a_client_that_never_reads_is_dropped(start: Callable[..., ModelServer]) -> None:
    server = start(limits=LimitsConfig(write_seconds=0.2))
    body = json.dumps({"inputs": {"examples": [""] * 10_000}}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    def ask_and_ask(client: socket.socket) -> None:
        while True:
            client.sendall(head + body)

    assert server._http is not None
    server._http._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # or the kernel reads for the client
    with (
        socket.create_connection(("127.0.0.1", server.port or 0), timeout=PATIENCE) as client,
        pytest.raises(OSError, match=r"reset|[Bb]roken"),
    ):
        ask_and_ask(client)
    assert ask(server, body=ONE).status == 200


def test_a_connection_too_many_ends_the_oldest_that_rests_or_is_sent_away(start: Callable[..., ModelServer]) -> None:
    server = start(limits=LimitsConfig(connections=2))
    address = ("127.0.0.1", server.port or 0)
    with socket.create_connection(address) as one, socket.create_connection(address) as two:
        one.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
        assert one.recv(100).startswith(b"HTTP/1.1 200")
        two.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
        assert two.recv(100).startswith(b"HTTP/1.1 200")
        with socket.create_connection(address) as three:
            assert read_all(one) == b"", "the oldest one without a request in progress is closed"
            three.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            assert three.recv(100).startswith(b"HTTP/1.1 200")
            head = b"POST /v1/models/ranker:predict HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n"
            two.sendall(head)
            three.sendall(head)  # both wait for a body
            deadline = time.monotonic() + PATIENCE
            while any(each.is_idle for each in list(server._http._connections if server._http else ())):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with socket.create_connection(address) as four:
                assert read_all(four).startswith(b"HTTP/1.1 503 ")


def test_all_but_probes_require_a_token(start: Callable[..., ModelServer]) -> None:
    server = start(grpc_port=0, token="sesame")  # noqa: S106 - a test's own
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "sesame"}):
        reply = ask(server, body=ONE, **headers)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert ask(server, "/v1/models/ranker/metadata").status == 401
    assert ask(server, body=ONE, authorization="Bearer sesame").status == 200
    assert ask(server, "/healthz").status == ask(server, "/readyz").status == 200
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        with pytest.raises(grpc.RpcError, match="token is wrong or missing"):
            call_grpc(channel, grpc_request(RAGGED))
        call_grpc(channel, grpc_request(RAGGED), metadata=[("authorization", "Bearer sesame")])


def test_tls_holds_for_both_front_ends(start: Callable[..., ModelServer], tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "server")
    server = start(grpc_port=0, tls_certificate=str(made.certificate), tls_key=str(made.key))
    context = ssl.create_default_context(cafile=str(made.certificate))
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE, context=context)
    for _ in range(2):  # on one connection: answers that leave it open are written in another way than the last
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b'{"status":"ok"}')
    connection.close()
    with pytest.raises(OSError, match=r"[Rr]emote|reset|closed"):
        ask(server, "/healthz")
    known = grpc.ssl_channel_credentials(made.certificate.read_bytes())
    with grpc.secure_channel(f"127.0.0.1:{server.grpc_port}", known) as channel:
        call_grpc(channel, grpc_request(RAGGED))


def test_metrics_have_a_port_of_their_own(start: Callable[..., ModelServer]) -> None:
    server = start(metrics_port=0)
    assert ask(server, body=ONE).status == 200
    assert ask(server, body={}).status == 400
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"

    def shown() -> str:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return str(response.read().decode())

    slow = ("monolith_serving_staleness_p99", "monolith_serving_unknown_id_rate{")
    wait_for(lambda: all(name in shown() for name in slow))
    text = shown()
    assert 'monolith_serving_staleness{model_name="ranker",version="7"} 2.0' in text
    tags = '{model_name="ranker",signature_name="serving_default"}'
    assert f"monolith_serving_serving_latency_count{tags}" in text
    assert 'monolith_serving_lookup_fid_hit_rate_sum{name="ranker"}' in text
    assert 'monolith_serving_rows{model_name="ranker",version="7"} 5.0' in text
    assert "monolith_serving_queue_requests 0.0" in text
    assert 'monolith_serving_unknown_id_rate{model_name="ranker"}' in text


def test_a_server_port_already_in_use_is_reported(start: Callable[..., ModelServer]) -> None:
    server = start()
    with pytest.raises(Exception, match=f"cannot listen on '127.0.0.1' port {server.port}"):
        start(port=server.port)


def test_nothing_remains_after_close(model: SmallModel, nothing_left_behind: None) -> None:
    registry = ModelRegistry()
    registry.add("ranker", model)
    with ModelServer(registry, grpc_port=0, metrics_port=0) as server:
        reply: Reply = ask(server, body=ONE)
        assert reply.status == 200
    server.close()
    registry.close()
    assert model.closed.is_set()


def test_a_registry_is_closed_when_the_models_that_were_removed_before_are() -> None:
    release, ended = threading.Event(), threading.Event()

    class Slow(SmallModel):
        def close(self) -> None:
            assert release.wait(PATIENCE)
            ended.set()

    registry = ModelRegistry()
    registry.add("ranker", Slow(export=1))
    registry.add("ranker", SmallModel(export=2))
    registry.remove("ranker", 1)
    closing = threading.Thread(target=registry.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    release.set()
    closing.join(PATIENCE)
    assert ended.is_set()


def test_a_signal_ends_the_wait_whenever_it_comes(start: Callable[..., ModelServer]) -> None:
    """Its handler runs between any two lines of `wait`, in the same thread, whatever lock that holds."""
    server = start()
    earlier = signal.signal(signal.SIGUSR2, lambda *_: server.stop())
    tracer = sys.gettrace()

    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_code.co_name == "wait":
            signal.raise_signal(signal.SIGUSR2)
        return interrupt

    sys.settrace(interrupt)
    try:
        server.wait()
        server.wait()  # it stays ended
    finally:
        sys.settrace(tracer)
        signal.signal(signal.SIGUSR2, earlier)


def test_the_body_of_an_answer_does_not_wait_until_its_head_is_acknowledged() -> None:
    with _listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_thread_of_the_gauges_survives_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "GAUGE_SECONDS", 0.01)
    shows = FailingOnce(ServingMetrics.show_queue, thread="serving-gauges")
    monkeypatch.setattr(ServingMetrics, "show_queue", shows)
    with ModelServer(ModelRegistry()):
        shows.require_survived()
