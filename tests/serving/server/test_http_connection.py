"""Connections over HTTP: who writes answers, in which order, and what becomes of clients that read slowly or leave."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from monolith.serving.server import LimitsConfig, ServerConfig
from monolith.serving.server.http.front import HttpFront
from monolith.serving.server.http.message import HttpRequest, HttpResponse, Reply
from monolith.serving.server.http.protocol import HttpConnection

PATIENCE = 60.0


class Application:
    """Answers with the path; requests to ``/later`` are kept until somebody replies to them."""

    def __init__(self) -> None:
        self.kept: list[tuple[HttpRequest, Reply]] = []
        self.came = threading.Semaphore(0)
        self.body = b""

    def begin(self, request: HttpRequest) -> HttpResponse | None:
        if request.path == "/refused":
            return HttpResponse(429, b"{}")
        return None

    def answer(self, request: HttpRequest, reply: Reply) -> None:
        if request.path.startswith("/later"):
            self.kept.append((request, reply))
            self.came.release()
        else:
            reply(self.response(request))

    def response(self, request: HttpRequest) -> HttpResponse:
        said = {"path": request.path, "size": len(request.body)}
        return HttpResponse(200, self.body or json.dumps(said).encode())

    def reply_to_kept(self) -> None:
        assert self.came.acquire(timeout=PATIENCE)
        request, reply = self.kept.pop(0)
        reply(self.response(request))


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
def connect(application: Application) -> Iterator[Callable[..., socket.socket]]:
    """Connections to a front, which has the limits that are given with the first one."""
    with ExitStack() as stack:
        fronts: list[HttpFront] = []

        def opened(**limits: Any) -> socket.socket:
            if not fronts:
                fronts.append(
                    HttpFront(application, ServerConfig(port=0, limits=LimitsConfig(**limits), drain_seconds=5.0))
                )
                stack.callback(fronts[0].close)
            return stack.enter_context(socket.create_connection(("127.0.0.1", fronts[0].port), timeout=PATIENCE))

        yield opened


def ask(path: str, body: bytes | None = None, *, method: str | None = None, head: str = "") -> bytes:
    method = method or ("GET" if body is None else "POST")
    length = "" if body is None else f"content-length: {len(body)}\r\n"
    return f"{method} {path} HTTP/1.1\r\nhost: a\r\n{length}{head}\r\n".encode() + (body or b"")


class Reader:
    """Reads answers one by one."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._data = b""

    def next(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        head = self._until(b"\r\n\r\n").decode()
        lines = head.split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        length = int(headers.get("content-length", 0)) if has_body else 0
        while len(self._data) < length:
            self._more()
        body, self._data = self._data[:length], self._data[length:]
        return int(lines[0].split()[1]), headers, body

    def is_at_end(self) -> bool:
        return not self._data and self._client.recv(1) == b""

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._data:
            self._more()
        found, _, self._data = self._data.partition(mark)
        return found

    def _more(self) -> None:
        data = self._client.recv(1 << 16)
        assert data, f"the connection ended behind {self._data[:200]!r}"
        self._data += data


def path_of(answer: tuple[int, dict[str, str], bytes]) -> str:
    assert answer[0] == 200
    return str(json.loads(answer[2])["path"])


def test_answers_come_in_the_order_of_requests_that_were_sent_without_waiting(
    application: Application, connect: Callable[..., socket.socket]
) -> None:
    client = connect()
    client.sendall(ask("/later/1") + ask("/2") + ask("/later/3", b"x" * 5) + ask("/refused", b"y" * 9) + ask("/5"))
    reader = Reader(client)
    application.reply_to_kept()
    assert [path_of(reader.next()), path_of(reader.next())] == ["/later/1", "/2"]
    application.reply_to_kept()
    assert json.loads(reader.next()[2]) == {"path": "/later/3", "size": 5}
    assert reader.next()[0] == 429
    assert path_of(reader.next()) == "/5"


def test_hundreds_of_requests_in_one_piece(connect: Callable[..., socket.socket]) -> None:
    client = connect()
    client.sendall(b"".join(ask(f"/{number}") for number in range(500)))
    reader = Reader(client)
    assert [path_of(reader.next()) for _ in range(500)] == [f"/{number}" for number in range(500)]


def test_an_answer_that_the_socket_accepts_only_in_parts_arrives_intact_and_before_the_next(
    application: Application, connect: Callable[..., socket.socket]
) -> None:
    client = connect()
    application.body = bytes(range(256)) * (1 << 16)  # 16 MiB
    client.sendall(ask("/later") + ask("/behind"))
    application.reply_to_kept()
    reader = Reader(client)
    assert [reader.next()[2] == application.body for _ in range(2)] == [True, True]


def test_the_thread_that_has_the_answer_writes_it(
    application: Application, connect: Callable[..., socket.socket]
) -> None:
    """The event loop is held up, and the answer comes all the same."""
    client, other = connect(), connect()
    reader, held = Reader(client), threading.Event()
    client.sendall(ask("/later"))
    assert application.came.acquire(timeout=PATIENCE)
    entered = threading.Event()
    begin = application.begin

    def hold(request: HttpRequest) -> HttpResponse | None:
        entered.set()
        assert held.wait(PATIENCE)
        return begin(request)

    application.begin = hold  # type: ignore[method-assign]
    other.sendall(ask("/"))
    assert entered.wait(PATIENCE)
    request, reply = application.kept.pop()
    reply(application.response(request))
    assert path_of(reader.next()) == "/later"
    held.set()
    assert path_of(Reader(other).next()) == "/"


def test_an_answer_for_a_client_that_left_goes_nowhere(
    application: Application, connect: Callable[..., socket.socket]
) -> None:
    client, other = connect(), connect()
    client.sendall(ask("/later"))
    assert application.came.acquire(timeout=PATIENCE)
    client.close()
    request, reply = application.kept.pop()
    for _ in range(3):
        other.sendall(ask("/"))
        assert path_of(Reader(other).next()) == "/"
        reply(application.response(request))  # before and behind the moment that the loop sees it
    other.sendall(ask("/last"))
    assert path_of(Reader(other).next()) == "/last"


def test_a_request_not_answered_in_time_is_reported_and_a_late_answer_is_dropped(
    application: Application, connect: Callable[..., socket.socket]
) -> None:
    client = connect()
    begin = application.begin

    def hurried(request: HttpRequest) -> HttpResponse | None:
        if request.path == "/later":
            request.deadline = 0.0  # long ago
        return begin(request)

    application.begin = hurried  # type: ignore[method-assign]
    client.sendall(ask("/later"))
    reader = Reader(client)
    assert reader.next()[0] == 504
    application.reply_to_kept()
    client.sendall(ask("/next"))
    assert path_of(reader.next()) == "/next"


def test_a_connection_ends_where_the_client_or_the_protocol_requires_it(connect: Callable[..., socket.socket]) -> None:
    for request in (
        ask("/", head="connection: close\r\n"),
        ask("/", head="connection: upgrade\r\nupgrade: websocket\r\n"),
        b"GET / HTTP/1.0\r\n\r\n",
    ):
        client = connect()
        client.sendall(request)
        reader = Reader(client)
        status, headers, _ = reader.next()
        assert (status, headers["connection"], reader.is_at_end()) == (200, "close", True)


def test_a_client_that_expects_100_continue_receives_it(connect: Callable[..., socket.socket]) -> None:
    client = connect()
    client.sendall(b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
    reader = Reader(client)
    assert reader.next(has_body=False)[0] == 100
    client.sendall(b"abc")
    assert json.loads(reader.next()[2])["size"] == 3
    client.sendall(b"POST /refused HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
    assert reader.next()[0] == 429


def test_head_has_the_length_and_no_body(connect: Callable[..., socket.socket]) -> None:
    client = connect()
    client.sendall(ask("/", method="HEAD") + ask("/next"))
    reader = Reader(client)
    status, headers, _ = reader.next(has_body=False)
    assert (status, int(headers["content-length"])) == (200, len(json.dumps({"path": "/", "size": 0})))
    assert path_of(reader.next()) == "/next"


def test_a_body_in_chunks_counts_as_one_and_has_the_same_limit(connect: Callable[..., socket.socket]) -> None:
    client = connect(body_bytes=100)
    client.sendall(ask("/", head="transfer-encoding: chunked\r\n", method="POST"))
    client.sendall(b"32\r\n" + b"a" * 50 + b"\r\n")
    client.sendall(b"32\r\n" + b"b" * 50 + b"\r\n0\r\n\r\n")
    reader = Reader(client)
    assert json.loads(reader.next()[2])["size"] == 100
    client.sendall(ask("/", head="transfer-encoding: chunked\r\n", method="POST"))
    client.sendall(b"65\r\n" + b"a" * 101 + b"\r\n0\r\n\r\n")
    status, headers, body = reader.next()
    assert (status, headers["connection"]) == (413, "close")
    assert b"a body may have 100 bytes" in body


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("content-length: " + "0" * 5000 + "3\r\n", b"content-length must be a number of at most 19 digits"),
        ("content-length: " + "9" * 5000 + "\r\n", b"no HTTP/1.1"),
        ("content-length: +3\r\n", b"no HTTP/1.1"),
        ("content-length: 3\r\ncontent-length: 3\r\n", b"no HTTP/1.1"),
        ("content-length: 3\r\ntransfer-encoding: chunked\r\n", b"no HTTP/1.1"),
        ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", b"no HTTP/1.1"),
        ("transfer-encoding: gzip, chunked\r\n", b"transfer-encoding must be chunked"),
        ("Host: b\r\n", b"host twice"),
        ("authorization: Bearer a\r\nAuthorization: Bearer b\r\n", b"authorization twice"),
        ("content-type: a/b\r\ncontent-type: a/b\r\n", b"content-type twice"),
        ("x-folded: a\r\n b\r\n", b"no HTTP/1.1"),
    ],
)
def test_a_head_that_two_programs_would_read_differently_is_refused(
    head: str, why: bytes, connect: Callable[..., socket.socket]
) -> None:
    client = connect()
    client.sendall(ask("/", method="POST", head=head) + b"abc")
    reader = Reader(client)
    status, headers, body = reader.next()
    assert (status, headers["connection"], why in body) == (400, "close", True), body


def test_a_host_must_be_named_from_http_1_1_on(connect: Callable[..., socket.socket]) -> None:
    client = connect()
    client.sendall(b"GET / HTTP/1.1\r\nx: y\r\n\r\n")
    status, _, body = Reader(client).next()
    assert (status, b"no host line" in body) == (400, True)


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (b"\x00\x01", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (ask("/", method="POST", head="transfer-encoding: chunked\r\n") + b"zz\r\n", 400),
        (ask("/", method="POST", head="transfer-encoding: chunked\r\n") + b"ff\r\n" + b"x" * 255, 413),
    ],
)
def test_a_bad_request_is_rejected_after_the_answers_before_it(
    bad: bytes, status: int, application: Application, connect: Callable[..., socket.socket]
) -> None:
    client = connect(body_bytes=100)
    client.sendall(ask("/later/1") + ask("/2", b"body") + bad)
    assert application.came.acquire(timeout=PATIENCE)
    request, reply = application.kept.pop()
    reply(application.response(request))
    reader = Reader(client)
    assert [path_of(reader.next()), path_of(reader.next())] == ["/later/1", "/2"]
    refused, headers, _ = reader.next()
    assert (refused, headers["connection"], reader.is_at_end()) == (status, "close", True)


def test_pipelined_requests_are_parsed_a_few_at_a_time(
    application: Application, connect: Callable[..., socket.socket]
) -> None:
    """Of a client that sends on and on, what waits stays bytes in buffers of a fixed size."""
    client = connect()
    client.sendall(ask("/later"))
    assert application.came.acquire(timeout=PATIENCE)
    request, reply = application.kept.pop()
    made: list[str] = []
    real = HttpRequest.__init__

    def counted(self: HttpRequest, method: str, path: str, *rest: Any) -> None:
        made.append(path)
        real(self, method, path, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HttpRequest, "__init__", counted)
        client.sendall(ask("/x") * 5000)
        other = connect()  # its answer comes behind what the loop did with the requests before
        for _ in range(3):
            other.sendall(ask("/"))
            assert path_of(Reader(other).next()) == "/"
        assert len(made) < 200
        reply(application.response(request))
        reader = Reader(client)
        assert [path_of(reader.next()) for _ in range(5001)] == ["/later", *["/x"] * 5000]
        assert len(made) == 5003


@pytest.mark.parametrize("url", [b"http://a/x?y=1", b"/x?y", b"/x#z", b"/%78"])
def test_paths_are_read_without_what_is_around_them(url: bytes, connect: Callable[..., socket.socket]) -> None:
    client = connect()
    client.sendall(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % url)
    assert path_of(Reader(client).next()) == "/x"


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        ask("/")[:-2] + b"a b: c\r\n\r\n",
        b"GET /" + b"x" * (70 << 10),
    ],
)
def test_what_is_no_http_is_answered_with_400(data: bytes, connect: Callable[..., socket.socket]) -> None:
    client = connect()
    client.sendall(data)
    status, headers, _ = Reader(client).next()
    assert (status, headers["connection"]) == (400, "close")


def test_an_idle_connection_is_closed_and_a_missing_head_is_reported(
    connect: Callable[..., socket.socket],
) -> None:
    client, silent = connect(head_seconds=0.05), connect()
    client.sendall(ask("/"))
    reader = Reader(client)
    assert path_of(reader.next()) == "/"
    assert reader.is_at_end()
    assert Reader(silent).next()[0] == 408


def test_a_connection_that_is_idle_after_a_slow_answer_is_closed_as_soon_as_any_other(
    application: Application, connect: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    look = HttpConnection._look

    def noted(connection: HttpConnection) -> None:
        look(connection)
        looked.set()

    monkeypatch.setattr(HttpConnection, "_look", noted)
    client = connect(head_seconds=0.05)
    client.sendall(ask("/later"))
    assert looked.wait(PATIENCE)  # the answer takes longer than a client may be idle
    application.reply_to_kept()
    reader = Reader(client)
    assert path_of(reader.next()) == "/later"
    assert reader.is_at_end()


def test_a_client_that_does_not_read_is_dropped(
    application: Application, connect: Callable[..., socket.socket]
) -> None:
    client, other = connect(write_seconds=0.05), connect()
    application.body = bytes(64 << 20)  # more than the buffers of the kernel take
    client.sendall(ask("/later"))
    application.reply_to_kept()
    application.body = b""
    is_dropped = False
    while not is_dropped:
        other.sendall(ask("/"))
        assert path_of(Reader(other).next()) == "/"
        try:
            client.sendall(b"GET")  # the answer is not read
        except OSError:
            is_dropped = True


def test_an_end_closes_idle_connections_immediately_and_others_after_their_answers(application: Application) -> None:
    front = HttpFront(application, ServerConfig(port=0, drain_seconds=PATIENCE))
    with (
        socket.create_connection(("127.0.0.1", front.port), timeout=PATIENCE) as resting,
        socket.create_connection(("127.0.0.1", front.port), timeout=PATIENCE) as waiting,
    ):
        resting.sendall(ask("/"))
        rested = Reader(resting)
        assert path_of(rested.next()) == "/"
        waiting.sendall(ask("/later"))
        assert application.came.acquire(timeout=PATIENCE)
        closing = threading.Thread(target=front.close)
        closing.start()
        assert rested.is_at_end()
        request, reply = application.kept.pop()
        reply(application.response(request))
        reader = Reader(waiting)
        assert path_of(reader.next()) == "/later"
        assert reader.is_at_end()
        closing.join(PATIENCE)
        assert not closing.is_alive()


@pytest.mark.slow
def test_a_connection_that_waits_for_its_answer_sets_few_timers(
    application: Application, connect: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    look = HttpConnection._look

    def counted(connection: HttpConnection) -> None:
        looks.append(None)
        look(connection)

    monkeypatch.setattr(HttpConnection, "_look", counted)
    client = connect(head_seconds=0.5, body_seconds=PATIENCE)
    begin = time.monotonic()
    client.sendall(ask("/later", b"12345")[:-1])
    client.settimeout(1.2)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(PATIENCE)
    assert 1 <= len(looks) <= (time.monotonic() - begin) / 0.5 + 2
    client.sendall(b"5")
    application.reply_to_kept()
    assert Reader(client).next()[0] == 200
