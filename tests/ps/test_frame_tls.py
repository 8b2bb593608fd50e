"""Batches over TLS: on the frame port where both ends have OpenSSL, else through the control port, in any pairing."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from contracts.one_worker import ONE_TABLE, Worker, rows_of
from hooks.server.certificates import Certificate, make_certificate
from monolith import _core
from monolith.errors import InvalidArgumentError, UnavailableError
from monolith.ps import PsCluster, PsServer, PsStore
from ps.raw_frames import question, token_and_words

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

TOKEN = "open sesame"  # noqa: S105 - a test's
MISSING = "TLS: OpenSSL 1.1.1 or 3 is needed and was not found"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificates"), "server")


@contextmanager
def without_openssl(is_missing: bool) -> Iterator[None]:
    """What is made inside finds no OpenSSL, like a process of a machine without it, or of an older release."""

    def missing(**_: Any) -> None:
        raise UnavailableError(MISSING)

    with pytest.MonkeyPatch.context() as patch:
        if is_missing:
            patch.setattr(_core, "TlsContext", missing)
        yield


@contextmanager
def pair(
    made: Certificate, *, server_lacks: bool = False, client_lacks: bool = False, **options: Any
) -> Iterator[tuple[PsServer, PsCluster]]:
    """A server and a client, with certificates of both."""
    with ExitStack() as ended:
        with without_openssl(server_lacks):
            server = ended.enter_context(
                PsServer(
                    0,
                    1,
                    token=TOKEN,
                    tls_certificate=str(made.certificate),
                    tls_key=str(made.key),
                    tls_client_ca=str(made.certificate),
                    **options,
                )
            )
        with without_openssl(client_lacks):
            cluster = PsCluster(
                [server.address],
                token=TOKEN,
                tls_ca=made.certificate,
                tls_certificate=made.certificate,
                tls_key=made.key,
            )
            ended.enter_context(cluster)
        yield server, cluster


def train(cluster: PsCluster) -> None:
    store = PsStore(ONE_TABLE, servers=cluster)
    Worker(store).train([1, 2])
    assert rows_of(store, [1, 2]) == [[-1.0, -1.0]] * 2
    store.close()


def test_batches_go_to_the_frame_port_where_both_ends_have_openssl(
    made: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pair(made) as (server, cluster):
        address = cluster.frame_address(0)
        assert address[:2] == ("127.0.0.1", int(server.frame_address.rpartition(":")[2]))
        assert len(address) == 3, "with TLS"
        train(cluster)
        assert not cluster._tunnels
        assert server._relay is not None
        assert server._relay.num_streams == 0
    assert "batches go through" not in caplog.text.lower()


@pytest.mark.parametrize(("server_lacks", "client_lacks"), [(True, False), (False, True), (True, True)])
def test_an_end_without_openssl_trains_through_the_control_port_and_logs_the_cost(
    made: Certificate, caplog: pytest.LogCaptureFixture, server_lacks: bool, client_lacks: bool
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        pair(made, server_lacks=server_lacks, client_lacks=client_lacks) as (server, cluster),
    ):
        assert len(cluster.frame_address(0)) == 2, "a tunnel, which is plain on this machine"
        train(cluster)
        assert list(cluster._tunnels) == [0]
        assert server._relay is not None
    assert caplog.text.count(MISSING) == server_lacks + client_lacks
    assert caplog.text.count("about 7 times the CPU") == server_lacks + client_lacks
    reason = "this process has no TLS for it" if client_lacks else "its frame port does not take TLS"
    assert reason in caplog.text


def test_a_frame_port_that_a_firewall_closes_is_named_and_the_control_port_used(
    made: Certificate, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.WARNING), pair(made) as (server, cluster):
        port = int(server.frame_address.rpartition(":")[2])

        def unreachable(address: tuple[str, int], **_: Any) -> None:
            assert address == ("127.0.0.1", port)
            raise TimeoutError("timed out")

        with monkeypatch.context() as patch:
            patch.setattr(socket, "create_connection", unreachable)
            assert len(cluster.frame_address(0)) == 2
        train(cluster)
    assert f"its frame port {port} cannot be reached (timed out); is it open in the firewall?" in caplog.text


def test_a_server_that_moves_is_reached_by_the_way_that_it_has(made: Certificate) -> None:
    with pair(made) as (_, cluster), pair(made, server_lacks=True) as (elsewhere, _):
        assert len(cluster.frame_address(0)) == 3
        cluster.move(0, elsewhere.address)
        assert len(cluster.frame_address(0)) == 2
        train(cluster)


def test_the_bytes_inside_tls_are_the_same_frames(made: Certificate) -> None:
    with pair(made) as (server, _):
        context = ssl.create_default_context(cafile=str(made.certificate))
        context.load_cert_chain(made.certificate, made.key)
        port = int(server.frame_address.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), 60) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            assert secure.version() in {"TLSv1.2", "TLSv1.3"}
            secure.sendall(question(1, token_and_words(b"wrong", b"dense\n")))
            heard = b""
            while piece := secure.recv(4096):
                heard += piece
        assert heard[:4] == b"MMLF"
        assert b"the token is wrong or missing" in heard


def test_versions_before_tls_1_2_are_rejected(made: Certificate) -> None:
    with pair(made) as (server, _):
        context = ssl.create_default_context(cafile=str(made.certificate))
        context.load_cert_chain(made.certificate, made.key)
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        port = int(server.frame_address.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), 60) as plain,
            pytest.raises(ssl.SSLError, match=r"(?i)alert"),
        ):
            context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_a_frame_client_without_the_right_certificate_gets_nowhere(made: Certificate, tmp_path: Path) -> None:
    other = make_certificate(tmp_path, "other")
    known = {"certificate": str(made.certificate), "key": str(made.key)}
    cases: list[tuple[dict[str, str], str]] = [
        ({"authorities": str(made.certificate)}, "does the other side accept the certificate of this one"),
        (
            {"authorities": str(made.certificate), "certificate": str(other.certificate), "key": str(other.key)},
            "does the other side accept the certificate of this one",
        ),
        ({"authorities": str(other.certificate), **known}, "the certificate of the other side was rejected"),
    ]
    with pair(made) as (server, _):
        port = int(server.frame_address.rpartition(":")[2])
        for files, reason in cases:
            tls = _core.TlsContext(is_server=False, **files)
            client = _core.FrameClient([("127.0.0.1", port, tls)], [b"dense\n"], token=TOKEN)
            with pytest.raises(UnavailableError, match=reason):
                client.begin(0, 64, b"", [], None, 1.0).wait()
            client.close()


def test_files_that_openssl_rejects_are_named(made: Certificate, tmp_path: Path) -> None:
    with pytest.raises((InvalidArgumentError, ValueError), match=f"{tmp_path}/none.pem: OpenSSL expects a certificate"):
        _core.TlsContext(is_server=True, certificate=f"{tmp_path}/none.pem", key=str(made.key))


FORKS = """
import gc, os, sys
from monolith import _core

class Echo:
    greeted = 0
    def greet(self, words, peer):
        self.greeted += 1
        return b""
    def call(self, words, kind, head, body):
        return head, []

certificate, key = sys.argv[1:]
echo = Echo()
tls = _core.TlsContext(is_server=True, certificate=certificate, key=key)
server = _core.FrameServer(host="127.0.0.1", port=0, token="", num_threads=1, handler=echo, tls=tls)
tls = _core.TlsContext(is_server=False, authorities=certificate)
client = _core.FrameClient([("127.0.0.1", server.port, tls)], [b"echo"])
for _ in range(20):
    assert client.begin(0, 64, b"here", [], None, 60.0).wait()[0] == b"here"
    child = os.fork()
    if child == 0:
        client.close()
        del client
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert client.begin(0, 64, b"still here", [], None, 60.0).wait()[0] == b"still here"
print("greeted", echo.greeted)
client.close()
server.stop(0.0)
"""


def test_a_child_that_drops_a_client_leaves_the_connection_of_its_parent_intact(made: Certificate) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(made.certificate), str(made.key)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "greeted 1\n", done.stderr[-2000:]
