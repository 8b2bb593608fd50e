"""Frames through a stream of gRPC: as many bytes, the same errors, and both ends let go."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from hooks.server.certificates import Certificate, make_certificate
from monolith import _core
from monolith.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from monolith.rpc.credentials import ClientCredentials, ServerCredentials
from monolith.rpc.tunnel import FRAMES_METHOD, FrameRelay, Tunnel
from ps.raw_frames import question, token_and_words

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

ECHO, FAIL, WAIT = 64, 65, 66
ENDS_HANGS = 60.0
OPEN_SESAME = "open sesame"


class Echo:
    """Answers with what it is told."""

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self.greeted = 0

    def greet(self, words: bytes, peer: str) -> bytes:
        assert peer.startswith("127.0.0.1:")
        self.greeted += 1
        return b"hello " + words

    def call(self, words: bytes, kind: int, head: bytes, body: memoryview) -> tuple[bytes, Sequence[bytes]] | None:
        assert words == b"echo"
        if kind == FAIL:
            raise NotFoundError("nothing here")
        if kind == WAIT:
            self.waiting.set()
            return None
        return head, [bytes(body)]


@dataclass
class Ends:
    """Both ends, and what is between them."""

    echo: Echo
    frames: Any
    relay: FrameRelay
    port: int
    tunnel: Tunnel

    def client(self, token: str = "") -> Any:
        return _core.FrameClient([self.tunnel.address], [b"echo"], token=token)


@contextmanager
def ends(
    server: ServerCredentials | None = None, client: ClientCredentials | None = None, *, max_streams: int = 16
) -> Iterator[Ends]:
    server, client = server or ServerCredentials(), client or ClientCredentials()
    echo = Echo()
    frames = _core.FrameServer(host="127.0.0.1", port=0, token=server.token or "", num_threads=2, handler=echo)
    relay = FrameRelay(frames.adopt, server, max_streams=max_streams)
    with (
        control_of(relay, server) as port,
        channel_to(port, client) as channel,
        Tunnel(channel, metadata=client.metadata() or ()) as tunnel,
    ):
        yield Ends(echo, frames, relay, port, tunnel)
    relay.close()
    frames.stop(0.0)


@contextmanager
def control_of(relay: FrameRelay | None, credentials: ServerCredentials, port: int = 0) -> Iterator[int]:
    """A control port with this relay, and nothing else."""
    threads = ThreadPoolExecutor(1)
    handlers = [] if relay is None else [relay.handler()]
    control = grpc.server(threads, handlers=handlers, options=[("grpc.so_reuseport", 0)])
    secure, wanted = credentials.grpc_credentials(), f"127.0.0.1:{port}"
    port = control.add_secure_port(wanted, secure) if secure else control.add_insecure_port(wanted)
    control.start()
    try:
        yield port
    finally:
        control.stop(0).wait()
        threads.shutdown()


@contextmanager
def channel_to(port: int, credentials: ClientCredentials) -> Iterator[Any]:
    secure = credentials.grpc_credentials()
    address = f"127.0.0.1:{port}"
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50)]
    channel = grpc.secure_channel(address, secure, options) if secure else grpc.insecure_channel(address, options)
    with channel:
        yield channel


def echo(client: Any, body: bytes, head: bytes = b"head") -> bytes:
    answer, answered = client.begin(0, ECHO, head, [body], None, ENDS_HANGS).wait()
    assert answer == head
    return bytes(answered)


def eventually(happens: Any) -> None:
    end = time.monotonic() + ENDS_HANGS
    while not happens():
        assert time.monotonic() < end, "it never did"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificates"), "server")


def test_a_frame_server_that_takes_no_connection_is_unavailable() -> None:
    def refuse(descriptor: int, _: str) -> None:
        os.close(descriptor)
        raise OSError("too many open files")

    relay = FrameRelay(refuse, ServerCredentials(), max_streams=1)
    with control_of(relay, ServerCredentials()) as port, channel_to(port, ClientCredentials()) as channel:
        stream = channel.stream_stream(FRAMES_METHOD)(iter([b"hello"]), timeout=ENDS_HANGS)
        with pytest.raises(grpc.RpcError) as raised:
            next(stream)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the frame server takes no connection: too many open files" in raised.value.details()
    relay.close()


class TestBytes:
    def test_calls_of_every_size_return_in_order(self) -> None:
        with ends() as both:
            client = both.client()
            bodies = [bytes([n % 251]) * size for n, size in enumerate((0, 1, 1000, (1 << 18) - 1, 1 << 18, 5_000_000))]
            calls = [client.begin(0, ECHO, b"%d" % n, [body], None, ENDS_HANGS) for n, body in enumerate(bodies)]
            assert [call.wait() for call in calls] == [(b"%d" % n, body) for n, body in enumerate(bodies)]
            assert client.reply_of(0) == b"hello echo"
            client.close()
            eventually(lambda: both.relay.num_streams == 0)
            assert both.frames.stats()["connections"] == 0

    def test_over_tls_with_a_token(self, certificate: Certificate) -> None:
        server = ServerCredentials(token=OPEN_SESAME, tls_certificate=certificate.certificate, tls_key=certificate.key)
        with ends(server, ClientCredentials(token=OPEN_SESAME, tls_ca=certificate.certificate)) as both:
            client = both.client(OPEN_SESAME)
            assert echo(client, b"x" * 3_000_000) == b"x" * 3_000_000
            client.close()

    def test_several_connections_run_concurrently(self) -> None:
        with ends() as both:
            clients = [both.client() for _ in range(8)]
            calls = [
                client.begin(0, ECHO, b"", [bytes([n]) * 500_000], None, ENDS_HANGS) for n, client in enumerate(clients)
            ]
            for n, call in enumerate(calls):
                assert call.wait()[1] == bytes([n]) * 500_000
            assert both.relay.num_streams == 8
            for client in clients:
                client.close()

    def test_an_error_of_the_service_is_the_callers(self) -> None:
        with ends() as both:
            client = both.client()
            with pytest.raises(NotFoundError, match="nothing here"):
                client.begin(0, FAIL, b"", [], None, ENDS_HANGS).wait()
            assert echo(client, b"goes on") == b"goes on"
            client.close()

    def test_what_is_sent_before_an_end_still_arrives(self) -> None:
        """A peer that says all it has and no more is answered, and then hung up on."""
        with ends() as both, socket.create_connection(both.tunnel.address, timeout=ENDS_HANGS) as raw:
            raw.sendall(b"x" * 40)
            raw.shutdown(socket.SHUT_WR)
            heard = b""
            while piece := raw.recv(4096):
                heard += piece
            assert heard[:4] == b"MMLF"
            assert b"these bytes do not begin one" in heard

    def test_a_client_that_does_not_read_makes_the_server_wait_and_not_grow(self) -> None:
        with ends() as both:
            client = both.client()
            echo(client, b"")
            with socket.create_connection(both.tunnel.address, timeout=ENDS_HANGS) as raw:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                frame = question(1, token_and_words(b"", b"echo"))
                body = b"y" * 1_000_000
                sent = threading.Thread(target=_say, args=(raw, frame + question(ECHO, b"", body) * 100))
                sent.start()
                eventually(lambda: both.frames.stats()["calls"] > 3)
                assert echo(client, b"quick") == b"quick"
                before = both.frames.stats()["calls"]
                assert before < 60, "its questions are not heard before it takes the answers"
                raw.shutdown(socket.SHUT_RDWR)
                sent.join()
            client.close()


class TestFaults:
    def test_a_wrong_token_of_the_control_is_reported_immediately(self) -> None:
        server = ServerCredentials(token=OPEN_SESAME)
        with ends(server, ClientCredentials(token=OPEN_SESAME + "s")) as both:
            client = both.client(OPEN_SESAME)
            with pytest.raises(PermissionDeniedError, match="the token is wrong or missing"):
                echo(client, b"")
            assert both.echo.greeted == 0
            client.close()

    def test_a_server_without_the_stream_method_is_reported(self) -> None:
        with (
            control_of(None, ServerCredentials()) as port,
            channel_to(port, ClientCredentials()) as channel,
            Tunnel(channel) as tunnel,
        ):
            client = _core.FrameClient([tunnel.address], [b"echo"], token="")
            with pytest.raises(FailedPreconditionError, match=r"(?i)method not found"):
                echo(client, b"")
            client.close()

    def test_a_server_of_other_certificates_is_not_talked_to(
        self, certificate: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = ServerCredentials(tls_certificate=certificate.certificate, tls_key=certificate.key)
        stranger = make_certificate(tmp_path, "stranger")
        with caplog.at_level(logging.WARNING), ends(server, ClientCredentials(tls_ca=stranger.certificate)) as both:
            client = both.client()
            with pytest.raises((UnavailableError, DeadlineExceededError)):
                client.begin(0, ECHO, b"", [], None, 0.5).wait()
            eventually(lambda: "UNAVAILABLE" in caplog.text)
            client.close()
        assert caplog.text.count("a connection to a parameter server ended") < 4, "not once for each attempt"

    def test_a_broken_stream_is_a_broken_connection_and_calls_are_sent_again(self) -> None:
        with ends() as both, ExitStack() as lives:
            first = ExitStack()
            port = first.enter_context(control_of(both.relay, ServerCredentials()))
            tunnel = lives.enter_context(Tunnel(lives.enter_context(channel_to(port, ClientCredentials()))))
            client = _core.FrameClient([tunnel.address], [b"echo"], token="")
            lives.callback(client.close)
            call = client.begin(0, WAIT, b"", [], None, ENDS_HANGS)
            assert both.echo.waiting.wait(ENDS_HANGS)
            first.close()
            eventually(lambda: both.relay.num_streams == 0)
            both.echo.waiting.clear()
            lives.enter_context(control_of(both.relay, ServerCredentials(), port))
            assert both.echo.waiting.wait(ENDS_HANGS), "asked again through a new stream"
            assert both.echo.greeted == 2
            assert not call.done

    def test_streams_beyond_the_limit_wait_for_their_turn(self) -> None:
        with ends(max_streams=1) as both:
            first, second = both.client(), both.client()
            assert echo(first, b"first") == b"first"
            waiting = second.begin(0, ECHO, b"", [b"second"], None, ENDS_HANGS)
            time.sleep(0.1)
            assert not waiting.done
            first.close()
            assert waiting.wait()[1] == b"second"
            second.close()

    def test_closing_ends_calls_in_flight(self) -> None:
        with ends() as both:
            client = both.client()
            call = client.begin(0, WAIT, b"", [], None, ENDS_HANGS)
            assert both.echo.waiting.wait(ENDS_HANGS)
            both.tunnel.close()
            both.tunnel.close()
            eventually(lambda: both.relay.num_streams == 0)
            client.close()
            del call

    def test_a_stopped_frame_server_ends_the_stream(self) -> None:
        with ends() as both, socket.create_connection(both.tunnel.address, timeout=ENDS_HANGS) as raw:
            raw.sendall(question(1, token_and_words(b"", b"echo")))
            assert raw.recv(4) == b"MMLF"
            both.frames.stop(0.0)
            while raw.recv(4096):
                pass
            eventually(lambda: both.relay.num_streams == 0)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Tunnel(None, max_connections=0),
            lambda: FrameRelay(print, ServerCredentials(), max_streams=0),
        ],
    )
    def test_limits_of_nothing_are_refused(self, make: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="must be >= 1, got 0"):
            make()


def _say(raw: socket.socket, content: bytes) -> None:
    with suppress(OSError):
        raw.sendall(content)


def test_a_tunnel_survives_a_connection_that_could_not_be_accepted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create, failures = socket.create_server, [OSError("no descriptor is left"), RuntimeError("a bug")]

    class Failing(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            if failures:
                raise failures.pop()
            return super().accept()

    def create_failing(*args: Any, **options: Any) -> socket.socket:
        return Failing(fileno=create(*args, **options).detach())

    monkeypatch.setattr(socket, "create_server", create_failing)
    with ends() as both:
        client = both.client()
        assert echo(client, b"body") == b"body"
        client.close()
    assert "thread ps-tunnel failed" in caplog.text
    assert "no descriptor is left" in caplog.text
