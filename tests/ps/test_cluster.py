"""How a client finds its servers, and what it says of those that are not what it expects."""

from __future__ import annotations

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

import grpc
import pytest

from contracts.one_worker import ONE_TABLE, Worker, rows_of
from hooks.server.certificates import make_certificate
from monolith import _version
from monolith.errors import (
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnauthenticatedError,
    UnavailableError,
)
from monolith.observe.process_resources import share_of_descriptors
from monolith.ps import PsCluster, PsServer, PsStore
from monolith.ps.client import cluster as cluster_module
from monolith.rpc.channel import ControlCall
from monolith.rpc.protos import parameter_server_pb2 as messages
from ports import free_port
from ps.server_fixtures import running, store_of

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


# Who is who


def test_servers_are_accepted_only_in_the_order_of_their_index() -> None:
    with running(2) as (first, second):
        with PsCluster([first.address, second.address]) as cluster:
            assert cluster.num_ps == 2
            assert cluster.owned == (range(512), range(512, 1024))
        with pytest.raises(FailedPreconditionError, match=r"server 0 at .* reports index 1 of 2, expected index 0"):
            PsCluster([second.address, first.address])


def test_two_servers_of_one_index_are_named_both() -> None:
    with PsServer(0, 2) as one, PsServer(0, 2) as other:
        with pytest.raises(FailedPreconditionError, match="both started as index 0 of 2") as refused:
            PsCluster([one.address, other.address])
        assert one.address in str(refused.value)
        assert other.address in str(refused.value)


def test_a_server_of_another_number_of_servers_is_refused() -> None:
    with PsServer(0, 3) as server, pytest.raises(FailedPreconditionError, match=r"index 0 of 3, expected index 0 of 1"):
        PsCluster([server.address])


def test_a_server_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with PsServer(0, 1) as server:
        monkeypatch.setattr(cluster_module, "WIRE_VERSION", 2)
        with pytest.raises(FailedPreconditionError, match=r"wire 1\), this client of .* \(wire 2\)"):
            PsCluster([server.address])
        monkeypatch.setattr(cluster_module, "WIRE_VERSION", 1)
        monkeypatch.setattr(cluster_module, "__version__", "9.9")
        with pytest.raises(FailedPreconditionError, match=rf"version {_version.__version__} .* of 9.9"):
            PsCluster([server.address])


@pytest.mark.parametrize("addresses", [[], ["127.0.0.1:7000", "127.0.0.1:7000"]])
def test_no_address_and_one_twice_are_refused(addresses: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"number of servers|each address once"):
        PsCluster(addresses)


def test_a_text_is_no_list_of_addresses() -> None:
    with pytest.raises(TypeError, match="a list of addresses"):
        PsCluster("127.0.0.1:7000")


@pytest.mark.parametrize(("index", "num_ps"), [(-1, 2), (2, 2), (0, 0), (0, 1025)])
def test_a_server_needs_an_index_among_all(index: int, num_ps: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"index must be from 0|num_ps must be from 1"):
        PsServer(index, num_ps)


def test_two_servers_do_not_share_a_port() -> None:
    with PsServer(0, 1) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(UnavailableError, match="is the port taken"):
            PsServer(0, 1, port=port)


# Not there, not yet, not any more


def test_a_server_that_is_not_up_is_named_after_the_limit() -> None:
    absent = f"127.0.0.1:{free_port()}"
    with (
        PsServer(0, 2) as server,
        pytest.raises(UnavailableError, match=r"after 0.3 s \(1 of 2 are\)") as refused,
    ):
        PsCluster([server.address, absent], timeout_seconds=0.3)
    assert f"parameter server 1 at {absent}" in str(refused.value)
    assert server.address not in str(refused.value)


def test_a_server_that_comes_later_is_waited_for() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(PsCluster, [f"127.0.0.1:{port}"], timeout_seconds=60.0)
        with PsServer(0, 1, port=port):
            waiting.result(60).close()


def test_a_restarted_server_is_detected() -> None:
    port = free_port()
    with PsServer(0, 1, port=port) as server, store_of([server]) as store:
        server.close(0.0)
        with PsServer(0, 1, port=port), pytest.raises(FailedPreconditionError, match="was restarted"):
            store.cut()


class CancelledByServer(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """What gRPC says of a call that has reached a server which ends, and which nobody there has begun to answer."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED

    def details(self) -> str:
        return "CANCELLED"

    def result(self) -> NoReturn:
        raise self


def test_a_server_that_ends_before_it_answers_counts_as_away() -> None:
    """Not as if somebody had cancelled the call: it may be back in a moment."""
    with PsServer(0, 1) as server, PsCluster([server.address]) as cluster:
        channel = cluster.channel(0)
        with pytest.raises(UnavailableError, match=r"server 0 at .* ended before it answered Hold; ask again"):
            ControlCall(channel, "Hold", CancelledByServer(), None).result()
    with pytest.raises(CancelledError, match="Hold: CANCELLED"):
        ControlCall(channel, "Hold", CancelledByServer(), None).result()  # by the close of its own channel


def test_a_server_that_has_ended_does_not_hang_its_clients() -> None:
    with PsServer(0, 1) as server, store_of([server], timeout_seconds=0.5) as store:
        server.close(0.0)
        with pytest.raises(OpError, match="parameter server 0 at"):
            store.stats()


def test_closing_a_server_does_not_wait_for_connected_clients() -> None:
    with PsServer(0, 1) as server, PsCluster([server.address]):
        ended = threading.Thread(target=server.close, args=(3600.0,))
        ended.start()
        ended.join(120)
        assert not ended.is_alive()


# Moving


def test_a_server_can_be_found_at_another_address(caplog: pytest.LogCaptureFixture) -> None:
    with PsServer(0, 1) as before, PsServer(0, 1) as after, store_of([before]) as store:
        moved: list[int] = []

        class Listener:
            def hear(self, index: int) -> None:
                moved.append(index)

        listener = Listener()
        store.cluster.on_move(listener.hear)
        store.cluster.move(0, after.address)
        assert (store.cluster.addresses, moved) == ((after.address,), [0])
        assert "is a new process, without the rows of the former one" in caplog.text
        with pytest.raises(OpError, match="store 'rows' does not exist"):
            store.stats()
        with (
            PsServer(0, 2) as other,
            pytest.raises(FailedPreconditionError, match="index 0 of 2, expected"),
        ):
            store.cluster.move(0, other.address)
        assert store.cluster.addresses == (after.address,)
        with pytest.raises(InvalidArgumentError, match="index must be"):
            store.cluster.move(1, after.address)


# Who may call


def test_only_clients_with_the_token_may_call() -> None:
    with PsServer(0, 1, token="open sesame") as server:  # noqa: S106 - a test's
        for wrong in (None, "sesame"):
            with pytest.raises(UnauthenticatedError, match="token is wrong or missing"):
                PsCluster([server.address], token=wrong)
        with PsCluster([server.address], token="open sesame") as cluster:  # noqa: S106 - a test's
            assert cluster.num_ps == 1


def test_a_client_with_the_certificate_and_the_token_trains_among_half_handshakes(tmp_path: Path) -> None:
    made, other = make_certificate(tmp_path, "server"), make_certificate(tmp_path, "other")
    secret = "open sesame"  # noqa: S105 - a test's
    hello = client_hello()
    with (
        PsServer(0, 1, token=secret, tls_certificate=str(made.certificate), tls_key=str(made.key)) as server,
        ExitStack() as peers,
    ):
        ports = [int(address.rpartition(":")[2]) for address in (server.address, server.frame_address)]
        for number in range(2 * (share_of_descriptors(128) + 20)):
            peer = peers.enter_context(socket.create_connection(("127.0.0.1", ports[number % 2]), 60))
            with suppress(OSError):  # the oldest are gone already
                peer.sendall(hello[: 1 + number % len(hello)])
        with PsCluster([server.address], token=secret, tls_ca=made.certificate) as cluster:
            store = PsStore(ONE_TABLE, servers=cluster)
            Worker(store).train([1, 2])
            assert rows_of(store, [1, 2]) == [[-1.0, -1.0]] * 2
            with store.cut() as cut:
                assert cut.rows == {"user": 2}
            store.close()
        with pytest.raises(UnauthenticatedError, match="token is wrong or missing"):
            PsCluster([server.address], token="sesame", tls_ca=made.certificate)  # noqa: S106 - a test's
        for authority in (None, other.certificate):
            with pytest.raises(
                UnavailableError, match=r"not up after 0\.3 s .*whether TLS is on and the CA trusted on both sides"
            ):
                PsCluster([server.address], token=secret, tls_ca=authority, timeout_seconds=0.3)


def client_hello() -> bytes:
    """The first message of a TLS handshake."""
    context, sent = ssl.create_default_context(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


# Bad input


def test_garbage_to_the_control_port_is_survived() -> None:
    with PsServer(0, 1) as server, PsCluster([server.address]) as cluster:
        host, _, port = server.address.rpartition(":")
        for garbage in (b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000):
            with socket.create_connection((host, int(port)), 10) as sender:
                sender.settimeout(10)
                try:
                    sender.sendall(garbage)
                    sender.shutdown(socket.SHUT_WR)
                    while sender.recv(4096):
                        pass
                except OSError:
                    pass  # it hung up
        with grpc.insecure_channel(server.address) as channel:
            for method in ("Describe", "CutAt", "Nothing"):
                call = channel.unary_unary(f"/monolith.ps.ParameterServer/{method}")
                with pytest.raises(grpc.RpcError):
                    call(b"\xff\xff\xff\xff", timeout=30)
        cluster.ask("Describe", messages.DescribeRequest())


def test_calls_that_cannot_be_meant_are_refused_as_such() -> None:
    with PsServer(0, 1) as server, store_of([server]) as store:
        ask = store.cluster.ask
        mark = messages.Mark(generation=0, life=1, epoch=0)
        reader = messages.ReaderRequest(store="rows", name="log", opened_at=mark)
        for method, request, text in (
            (
                "Moment",
                messages.StoreRequest(store="nobody"),
                "store 'nobody' does not exist on this server .it has: rows.",
            ),
            ("Hold", messages.HoldRequest(client=1, seconds=1e9), "seconds above 0"),
            ("Hold", messages.HoldRequest(client=1, seconds=float("nan")), "seconds above 0"),
            ("Level", messages.LevelRequest(client=1), "it is over"),
            ("CutAt", messages.CutAtRequest(store="rows", client=1, epoch=1), "newest times of 1 tables"),
            (
                "CutAt",
                messages.CutAtRequest(store="rows", client=1, epoch=1, newest_times=[0]),
                "connection of this",
            ),
            (
                "CutAt",
                messages.CutAtRequest(store="rows", client=1, epoch=2**60, newest_times=[0]),
                "ahead of",
            ),
            ("WriteCut", messages.WriteCutRequest(store="rows", number=9, folder="x"), "cut 9 is not open"),
            ("Load", messages.TicketRequest(store="rows", number=9), "load 9 is not open"),
            (
                "Touch",
                messages.TouchRequest(store="rows", table="user", ids=b"123"),
                "numbers of 8 bytes",
            ),
            ("ReaderPosition", reader, "another run"),
            ("Configure", messages.ConfigureRequest(store="x", agreement=b"{"), "not the configs of some tables"),
            ("Configure", messages.ConfigureRequest(store="a\nb", agreement=b"{}"), "without line breaks"),
            ("Assign", iter([messages.AssignRequest()]), "expected in the first message"),
        ):
            with pytest.raises(OpError, match=text):
                ask(method, [request])
        store.cut().release()


def test_a_call_waiting_for_a_server_that_moves_raises_unavailable_and_suggests_a_retry() -> None:
    with PsServer(0, 1) as before, PsServer(0, 1) as after, PsCluster([before.address]) as cluster:
        before.close()
        waiting = cluster.begin("Describe", messages.DescribeRequest(), timeout_seconds=None)
        old = cluster.channel(0)
        cluster.move(0, after.address)
        with pytest.raises(UnavailableError, match=rf"server 0 at {before.address}: it is at {after.address} now"):
            waiting[0].result()
        with pytest.raises(UnavailableError, match="ask again"):
            old.begin("Describe", messages.DescribeRequest(), 1.0)
        assert cluster.ask("Describe", messages.DescribeRequest())[0].index == 0


def test_pending_calls_end_with_a_cluster() -> None:
    with PsServer(0, 1) as server, PsCluster([server.address]) as cluster:
        server.close()
        waiting = cluster.begin("Describe", messages.DescribeRequest(), timeout_seconds=None)
        channel = cluster.channel(0)
        cluster.close()
        with pytest.raises(CancelledError):
            waiting[0].result()
        with pytest.raises(FailedPreconditionError, match="was closed"):
            channel.begin("Describe", messages.DescribeRequest(), 1.0)


def test_opening_a_store_does_not_undo_a_resume_of_another_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(2) as servers, store_of(servers) as store, PsCluster([each.address for each in servers]) as late:
        ask_one = late.ask_one

        def ask_one_then_resume(*arguments: object, **options: object) -> object:
            answer = ask_one(*arguments, **options)  # type: ignore[arg-type]
            monkeypatch.undo()
            store.resume(applied=[], generation=3)
            return answer

        monkeypatch.setattr(late, "ask_one", ask_one_then_resume)
        PsStore(ONE_TABLE, servers=late).close()
        lives = {
            moment.life.generation for moment in store.cluster.ask("Moment", messages.StoreRequest(store=store.name))
        }
        assert lives == {4}
