"""Connections to a gRPC port without credentials: few, not for long, and nobody else is kept out."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from failing_once import FailingOnce
from hooks.server.certificates import Certificate, make_certificate
from monolith.observe.process_resources import share_of_descriptors
from monolith.rpc import endpoints
from monolith.rpc.credentials import ClientCredentials, ServerCredentials
from monolith.rpc.endpoints import ConnectionLimit

ENDS_HANGS = 60.0
TOKEN = "open sesame"  # noqa: S105 - a test's own
MOST = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
Start = Callable[..., tuple[int, ConnectionLimit]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server that echoes to who knows the token; its port and limit."""
    with ExitStack() as ended:

        def started(*, certificate: Certificate | None = None, **options: Any) -> tuple[int, ConnectionLimit]:
            files = {} if certificate is None else _files(certificate)
            credentials = ServerCredentials(token=TOKEN, **files)
            limit = ConnectionLimit(credentials, **options)

            def echo(request: bytes, context: Any) -> bytes:
                if not credentials.accepts(context.invocation_metadata()):
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
                return request

            handler = grpc.method_handlers_generic_handler("test", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})
            server = grpc.server(ThreadPoolExecutor(2), handlers=[handler], interceptors=[limit])
            secure = credentials.grpc_credentials()
            add = server.add_insecure_port if secure is None else server.add_secure_port
            port = int(add("127.0.0.1:0") if secure is None else add("127.0.0.1:0", secure))
            server.start()
            limit.watch(port)
            ended.callback(lambda: server.stop(0).wait())
            ended.callback(limit.close)
            return port, limit

        yield started


def _files(certificate: Certificate) -> dict[str, Any]:
    return {"tls_certificate": certificate.certificate, "tls_key": certificate.key}


def call(channel: grpc.Channel, token: str = TOKEN) -> bytes:
    metadata = ClientCredentials(token=token).metadata()
    return bytes(channel.unary_unary("/test/Echo")(b"hello", metadata=metadata, timeout=ENDS_HANGS))


def connect(port: int, content: bytes = b"") -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=ENDS_HANGS)
    peer.sendall(content)
    return peer


def is_open(peer: socket.socket) -> bool:
    peer.settimeout(0)
    try:
        while peer.recv(4096):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def eventually(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + ENDS_HANGS
    while not happens():
        assert time.monotonic() < end, "it never did"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"P", PREFACE], ids=["silent", "a byte", "a preface"])
def test_the_oldest_without_the_token_are_closed_first(start: Start, content: bytes) -> None:
    port, limit = start(most=MOST)
    with ExitStack() as ended:
        known = [ended.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", _own(i))) for i in range(MOST + 2)]
        assert [call(channel) for channel in known] == [b"hello"] * len(known)
        old = [ended.enter_context(connect(port, content)) for _ in range(3)]
        eventually(lambda: len(limit._connections) == len(known) + len(old))  # they are seen before the others
        new = [ended.enter_context(connect(port, content)) for _ in range(MOST)]
        eventually(lambda: not any(map(is_open, old)))
        assert all(map(is_open, new))
        assert [call(channel) for channel in known] == [b"hello"] * len(known)


def _own(number: int) -> list[tuple[str, Any]]:
    """A connection of its own."""
    return [("grpc.use_local_subchannel_pool", 1), ("test.number", number)]


def test_a_connection_that_makes_no_call_is_closed_however_much_it_sends(start: Start) -> None:
    port, _ = start(silent_seconds=0.5)
    with grpc.insecure_channel(f"127.0.0.1:{port}", _own(0)) as known, connect(port, PREFACE) as peer:
        assert call(known) == b"hello"

        def is_closed() -> bool:
            try:
                peer.settimeout(ENDS_HANGS)
                peer.sendall(b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"\x01" * 8)  # a ping
            except OSError:
                return True
            return not is_open(peer)

        eventually(is_closed)
        assert call(known) == b"hello"


@pytest.mark.slow
def test_a_caller_without_the_token_counts_as_not_authenticated(start: Start) -> None:
    port, _ = start(most=1, silent_seconds=0.1)
    with grpc.insecure_channel(f"127.0.0.1:{port}", _own(0)) as first:
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            call(first, "wrong")
        states: list[grpc.ChannelConnectivity] = []
        first.subscribe(states.append)
        eventually(lambda: states[-1:] == [grpc.ChannelConnectivity.READY])
        time.sleep(0.7)
        assert states[-1] == grpc.ChannelConnectivity.READY, "one that calls may stay while there are few"
        with connect(port):
            eventually(lambda: grpc.ChannelConnectivity.IDLE in states)


def test_half_open_handshakes_and_plain_text_do_not_fill_a_tls_port(start: Start, tmp_path: Path) -> None:
    made, other = make_certificate(tmp_path, "server"), make_certificate(tmp_path, "other")
    port, _ = start(certificate=made, most=MOST)
    secure = ClientCredentials(token=TOKEN, tls_ca=made.certificate).grpc_credentials()
    hello = ssl.MemoryBIO()
    half = ssl.create_default_context(cafile=str(made.certificate)).wrap_bio(ssl.MemoryBIO(), hello)
    with pytest.raises(ssl.SSLWantReadError):
        half.do_handshake()
    with ExitStack() as ended:
        channel = ended.enter_context(grpc.secure_channel(f"127.0.0.1:{port}", secure, _own(0)))
        assert call(channel) == b"hello"
        begun = hello.read()
        peers = [ended.enter_context(connect(port, content)) for content in (b"", begun[:7], begun, PREFACE) * 5]
        eventually(lambda: sum(map(is_open, peers)) <= MOST)
        assert call(channel) == b"hello"
        wrong = ClientCredentials(token=TOKEN, tls_ca=other.certificate).grpc_credentials()
        with grpc.secure_channel(f"127.0.0.1:{port}", wrong, _own(1)) as stranger, pytest.raises(grpc.RpcError):
            stranger.unary_unary("/test/Echo")(b"hello", timeout=2)
        with grpc.secure_channel(f"127.0.0.1:{port}", secure, _own(2)) as late:
            assert call(late) == b"hello"


def test_the_share_is_below_what_the_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 1024))
    assert (share_of_descriptors(128), share_of_descriptors(10), share_of_descriptors(1024, 0.75)) == (32, 10, 192)
    monkeypatch.setattr("resource.getrlimit", lambda _: (4, 1024))
    assert share_of_descriptors(128) == 1


def test_an_error_of_a_look_ends_neither_the_thread_nor_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    look = FailingOnce(ConnectionLimit._look, thread="connections-7")
    monkeypatch.setattr(ConnectionLimit, "_look", lambda limit, _: look(limit, 7))
    monkeypatch.setattr(endpoints, "_LOOK_SECONDS", 0.01)
    limit = ConnectionLimit(ServerCredentials())
    limit.watch(7)
    look.require_survived()
    limit.close()
