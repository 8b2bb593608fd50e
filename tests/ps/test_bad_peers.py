"""A parameter server among peers that do not behave: it stays up, its memory stays bounded, and others are served."""

from __future__ import annotations

import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from monolith import _core
from monolith.cluster.addresses import split_address
from monolith.errors import FailedPreconditionError, PermissionDeniedError
from monolith.observe.process_resources import share_of_descriptors
from monolith.ps import PsCluster, PsServer, PsStore
from monolith.tables import BatchStamp, Segment, TableConfig
from ps.raw_frames import HEADER_BYTES, question, token_and_words

ENDS_HANGS = 60.0
OPEN_SESAME = "open sesame"
IDS = torch.arange(10)
CONFIGS = {"item": TableConfig([Segment(2)])}
ERROR, GREETING, PULL = 0, 1, 17


class Served:
    """A server, and a store on it that behaves."""

    def __init__(self, server: PsServer, store: PsStore) -> None:
        self.server = server
        self.store = store

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.frames.port), timeout=ENDS_HANGS)

    def greeting(
        self,
        token: str = OPEN_SESAME,
        *,
        version: int = _core.FRAME_VERSION,
        head_bytes: int | None = None,
        body_bytes: int | None = None,
    ) -> bytes:
        head = token_and_words(token.encode(), self.store.frames_words[0])
        return question(GREETING, head, call=0, version=version, head_bytes=head_bytes, body_bytes=body_bytes)

    def pull(self, ids: range = range(10), *, head_bytes: int | None = None, body_bytes: int | None = None) -> bytes:
        """A read of some rows, as docs/formats/frames.md has it."""
        keys = np.array(ids, np.int64)
        buckets = _core.bucket_of(keys)
        order = np.argsort(buckets, kind="stable")
        cells, counts = np.unique(buckets, return_counts=True)
        body = keys[order].tobytes() + np.stack([cells, counts], 1).astype(np.uint32).tobytes()
        head = struct.pack("<qqqqQB", -1, 0, -1, 0, 0, 0) + struct.pack("<IQB", len(cells), len(keys), 0)
        return question(PULL, head, body, head_bytes=head_bytes, body_bytes=body_bytes)

    def require_serves(self) -> None:
        """A read by who behaves."""
        plan = self.store.plan(IDS, torch.tensor([0, len(IDS)]), stamp=BatchStamp(worker=0, seq=0))
        assert self.store.read(plan, step=0).result(ENDS_HANGS).values.shape == (2 * len(IDS),)

    def num_connections(self) -> int:
        return self.server.frames.stats()["connections"]


@contextmanager
def serving() -> Iterator[Served]:
    with (
        PsServer(0, num_ps=1, token=OPEN_SESAME, num_threads=2) as server,
        PsCluster([server.address], token=OPEN_SESAME) as cluster,
    ):
        store = PsStore(CONFIGS, servers=cluster)
        made = Served(server, store)
        made.require_serves()  # from here on its connection is there
        try:
            yield made
        finally:
            store.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.fixture(autouse=True)
def still_serves(served: Served) -> Iterator[None]:
    """After every test, whatever was done to it, the server serves, and has let go of those who are gone."""
    yield
    served.require_serves()
    eventually(lambda: served.num_connections() == 1)


def eventually(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + ENDS_HANGS
    while not happens():
        assert time.monotonic() < end, "it never did"
        time.sleep(0.005)


def say(peer: socket.socket, content: bytes) -> None:
    with suppress(OSError):  # hung up on
        peer.sendall(content)


def hear_all(peer: socket.socket) -> bytes:
    """Until the server hangs up."""
    heard = b""
    with suppress(ConnectionResetError):
        while piece := peer.recv(1 << 16):
            heard += piece
    return heard


def hear_frame(peer: socket.socket) -> tuple[int, bytes, bytes]:
    """Kind, head and body."""
    header = peer.recv(HEADER_BYTES, socket.MSG_WAITALL)
    _, _, kind, _, body_bytes, head_bytes = struct.unpack_from("<4sHHQQI", header)
    head, body = (peer.recv(size, socket.MSG_WAITALL) if size else b"" for size in (head_bytes, body_bytes))
    return kind, head, body


def error_in(heard: bytes) -> tuple[int, str]:
    """Code and text of the last frame of what was heard, which is an error."""
    at = heard.rindex(b"MMLF")
    assert struct.unpack_from("<H", heard, at + 6)[0] == ERROR
    code, size = struct.unpack_from("<II", heard, at + HEADER_BYTES)
    return code, heard[at + HEADER_BYTES + 8 :][:size].decode()


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def said(served: Served, content: bytes) -> bytes:
    with served.connect() as peer:
        say(peer, content)
        peer.shutdown(socket.SHUT_WR)
        return hear_all(peer)


class TestPeerMessages:
    def test_a_pull_by_hand_is_answered(self, served: Served) -> None:
        """The grammar of the page is that of the server, so that the damaged ones below are nearly right."""
        with served.connect() as peer:
            peer.sendall(served.greeting() + served.pull())
            assert hear_frame(peer) == (GREETING, b"", b"")
            kind, head, body = hear_frame(peer)
        assert (kind, len(head), len(body)) == (PULL, 1 + 8 + 8, 10 * 2 * 4)

    def test_a_greeting_and_a_pull_that_end_at_any_byte(self, served: Served) -> None:
        whole = served.greeting() + served.pull()
        greeting = len(served.greeting())
        for size in range(len(whole)):
            heard = said(served, whole[:size])
            assert bool(heard) == (size >= greeting), f"of {size} bytes"

    @pytest.mark.parametrize(
        "content",
        [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b" " * 40, b"\x16\x03\x01" * 40, bytes(40), b"\xff" * 400],
        ids=["http", "tls", "zeros", "ones"],
    )
    def test_another_protocol_is_answered_with_an_error(self, served: Served, content: bytes) -> None:
        code, text = error_in(said(served, content))
        assert code == 2
        assert text == "frame: these bytes do not begin one; is the other side a program of this project?"

    def test_another_version_is_named(self, served: Served) -> None:
        code, text = error_in(said(served, served.greeting(version=7)))
        assert (code, text) == (
            1,
            f"frame: the other side speaks version 7, this one {_core.FRAME_VERSION}; install the same release on both",
        )

    @pytest.mark.parametrize("token", ["", "open sesam", "open sesame!", "Open sesame"])
    def test_another_token_is_refused(self, served: Served, token: str) -> None:
        assert error_in(said(served, served.greeting(token))) == (8, "server: the token is wrong or missing")

    def test_the_core_client_also_raises_for_a_wrong_token(self, served: Served) -> None:
        client = _core.FrameClient(
            [("127.0.0.1", served.server.frames.port)], served.store.frames_words, token=OPEN_SESAME[1:]
        )
        with pytest.raises(PermissionDeniedError, match="the token is wrong or missing"):
            client.begin(0, PULL, b"", [], None, ENDS_HANGS).wait()
        client.close()

    @pytest.mark.parametrize(
        ("words", "match"),
        [
            (b"rows\nelsewhere\n0 1024\n", "the server has no store 'elsewhere'"),
            (b"rows\nrows\n0 512\n", "the server has buckets 0 1024, not 0 512"),
            (b"rows\nrows\n0 1024\n{}", "the server's tables are others, or learn otherwise"),
        ],
    )
    def test_another_model_is_refused(self, served: Served, words: bytes, match: str) -> None:
        address = [("127.0.0.1", served.server.frames.port)]
        client = _core.FrameClient(address, [words], token=OPEN_SESAME)
        with pytest.raises(FailedPreconditionError, match=match):
            client.begin(0, PULL, b"", [], None, ENDS_HANGS).wait()
        client.close()

    def test_sizes_above_the_limits_are_refused_before_they_are_sent(self, served: Served) -> None:
        lies = {"head": served.pull(head_bytes=(1 << 20) + 1), "body": served.pull(body_bytes=(1 << 30) + 1)}
        for part, pull in lies.items():
            code, text = error_in(said(served, served.greeting() + pull))
            assert code == 3
            assert text.startswith(f"frame: its {part} has ")
        assert error_in(said(served, served.greeting(head_bytes=(64 << 10) + 1)))[0] == 3, "a stranger may say less"
        assert error_in(said(served, served.greeting(body_bytes=1)))[0] == 3

    def test_a_thousand_damaged_streams(self, served: Served) -> None:
        chance = np.random.default_rng(5)
        whole = served.greeting() + served.pull() + served.pull(range(100, 140))
        for _ in range(1000):
            damaged = bytearray(whole)
            for _ in range(chance.integers(1, 5)):
                damaged[chance.integers(len(damaged))] = chance.integers(256)
            with served.connect() as peer:
                say(peer, bytes(damaged[: chance.integers(len(damaged) + 1)]))


class TestSlowAndIdlePeers:
    @pytest.mark.slow
    def test_sizes_that_lie_cost_a_page_each(self, served: Served) -> None:
        """200 GiB are announced. A page has 2 MiB where the system gives huge ones to everybody."""
        before = resident_bytes()
        with ExitStack() as peers:
            for _ in range(200):
                peer = peers.enter_context(served.connect())
                say(peer, served.greeting() + served.pull(body_bytes=(1 << 30) - 8)[: HEADER_BYTES + 60])
            eventually(lambda: served.num_connections() == 201)
            served.require_serves()
            assert resident_bytes() - before < 200 * (2 << 20) + (64 << 20)

    def test_one_that_never_reads_its_answers_waits_alone(self, served: Served) -> None:
        pulls = served.pull(range(50_000)) * 200  # 400 kB of answer each
        before = resident_bytes()
        with served.connect() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            talking = threading.Thread(target=say, args=(peer, served.greeting() + pulls))
            talking.start()
            calls = served.server.frames.stats()["calls"]
            eventually(lambda: served.server.frames.stats()["calls"] > calls + 2)
            for _ in range(5):
                served.require_serves()
            assert resident_bytes() - before < 128 << 20
            peer.shutdown(socket.SHUT_RDWR)
            talking.join()

    def test_a_slow_reader_gets_all_of_it(self, served: Served) -> None:
        with served.connect() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            peer.sendall(served.greeting() + served.pull(range(20_000)))
            assert hear_frame(peer)[0] == GREETING
            header = peer.recv(HEADER_BYTES, socket.MSG_WAITALL)
            body_bytes, head_bytes = struct.unpack_from("<QI", header, 16)
            left = body_bytes + head_bytes
            while left:
                served.require_serves()
                left -= len(peer.recv(min(left, 8192)))

    def test_a_slow_writer_is_served_and_blocks_no_other_client(self, served: Served) -> None:
        content = served.greeting() + served.pull()
        with served.connect() as peer:
            for at in range(0, len(content), 40):
                peer.sendall(content[at : at + 40])
                served.require_serves()
            assert [hear_frame(peer)[0], hear_frame(peer)[0]] == [GREETING, PULL]

    def test_idle_connections_are_no_burden(self, served: Served) -> None:
        """Ten thousand where the system allows that many descriptors, else what it allows."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * 10_000 + 1000  # both ends are in this process
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
        in_use = len(list(Path("/proc/self/fd").iterdir()))  # servers of earlier tests may run
        count = (max(soft, allowed) - in_use - 1000) // 2
        before = resident_bytes()
        try:
            with ExitStack() as peers:
                for _ in range(count):
                    peers.enter_context(served.connect()).sendall(served.greeting())
                eventually(lambda: served.num_connections() == count + 1)
                for _ in range(5):
                    served.require_serves()
                assert resident_bytes() - before < count * (8 << 10) + (32 << 20)
            eventually(lambda: served.num_connections() == 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_strangers_keep_no_worker_out(self) -> None:
        """More than may be there, on both ports, all of them in the middle of a greeting.

        The server is of this test alone: a crowd of callers makes its pool start threads that stay until it closes.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = min(300, (soft - 200) // 4)  # both ends are in this process
        most = share_of_descriptors(128)
        assert count > most, "too few descriptors for this test"
        with serving() as served, ExitStack() as peers:
            begun = served.greeting(head_bytes=65536)
            control = split_address(served.server.address)
            frames = [peers.enter_context(served.connect()) for _ in range(count)]
            callers = [peers.enter_context(socket.create_connection(control, ENDS_HANGS)) for _ in range(count)]
            for peer in frames:
                with suppress(OSError):  # the oldest are gone already
                    peer.sendall(begun)
            eventually(lambda: served.num_connections() <= most + 1)
            with PsCluster([served.server.address], token=OPEN_SESAME, timeout_seconds=ENDS_HANGS) as cluster:
                late = PsStore(CONFIGS, servers=cluster, name="another")
                assert late.join(worker=0).next_seq == 0
                late.close()
            served.require_serves()
            eventually(lambda: sum(map(is_open, callers)) <= most)
            assert not is_open(frames[0])
            assert is_open(frames[-1])
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


class Nobody:
    """Takes any greeting."""

    def greet(self, words: bytes, peer: str) -> bytes:
        return b""

    def call(self, words: bytes, kind: int, head: bytes, body: memoryview) -> tuple[bytes, list[bytes]]:
        return head, [bytes(body)]


def is_open(peer: socket.socket) -> bool:
    """Whether the server has not hung up."""
    peer.settimeout(0)
    try:
        while peer.recv(4096):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def test_a_peer_that_begins_and_stalls_is_disconnected_after_patience_seconds() -> None:
    server = _core.FrameServer(
        host="127.0.0.1", port=0, token="", num_threads=1, handler=Nobody(), patience_seconds=0.1
    )
    greeting, call = question(GREETING, token_and_words(b"", b"x")), question(64, b"head", b"b" * 100)
    for content in (b"", greeting[:20], greeting + call[:-1]):
        with socket.create_connection(("127.0.0.1", server.port), timeout=ENDS_HANGS) as peer:
            peer.sendall(content)
            hear_all(peer)
    assert server.stats()["refused"] == 3
    with socket.create_connection(("127.0.0.1", server.port), timeout=ENDS_HANGS) as peer:
        peer.sendall(greeting + call)
        assert hear_frame(peer)[0] == GREETING
        assert hear_frame(peer)[2] == b"b" * 100
        time.sleep(0.5)
        assert server.stats()["connections"] == 1, "who has said all it wanted may stay"
    server.stop(0.0)
