"""The Consul client against a real HTTP server, over TCP, IPv6 and a Unix socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from consul_agent import ConsulAgent
from discovery_backends import eventually
from monolith.cluster.discovery import Client, ConsulException, StockClient, UnixHTTPConnection, consul_client
from monolith.cluster.discovery.service_discovery import start_heartbeat
from monolith.errors import UnavailableError
from monolith.testing import FakeClock

Connect = Callable[..., Client]


@pytest.fixture(params=["tcp", "unix"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConsulAgent]:
    with ConsulAgent(tmp_path / "consul.sock" if request.param == "unix" else None) as agent:
        yield agent


@pytest.fixture
def connect(agent: ConsulAgent) -> Iterator[Connect]:
    """Makes clients of the agent, and closes them."""
    made: list[Client] = []

    def make(client_class: type[Client] = Client, **options: Any) -> Client:
        made.append(client_class(agent.host, agent.port, **{"heartbeat_seconds": 3600.0, **options}))
        return made[-1]

    yield make
    for client in made:
        client.close()


def test_a_registered_service_is_found_with_its_tags(agent: ConsulAgent, connect: Connect) -> None:
    client = connect()
    assert client.lookup("job") == []
    client.register("job", 2222, {"index": 0, "name": "ps", "ip": "fd00::1"})
    assert client.lookup("job") == [
        {"Host": "127.0.0.1", "Port": 2222, "Tags": {"index": "0", "name": "ps", "ip": "fd00::1"}}
    ]
    assert agent.requests[1].body == {
        "id": "job-2222",
        "name": "job",
        "port": 2222,
        "check": {"ttl": "60s"},
        "tags": ["index:0", "name:ps", "ip:fd00::1"],
    }
    assert agent.paths("GET") == [
        "/v1/lookup/name?name=job&addr-family=dual-stack",
        "/v1/agent/check/pass/service%3Ajob-2222".replace("%3A", ":"),
        "/v1/lookup/name?name=job&addr-family=dual-stack",
    ]


def test_a_deregistered_service_is_removed_and_gets_no_heartbeat(agent: ConsulAgent, connect: Connect) -> None:
    client = connect()
    client.register("job", 2222)
    assert client.keeps_alive("job", 2222)
    client.deregister("job", 2222)
    assert agent.paths("PUT")[-1] == "/v1/agent/service/deregister/job-2222"
    assert client.lookup("job") == []
    assert not client.keeps_alive("job", 2222)


def test_a_script_takes_the_place_of_the_heartbeat(agent: ConsulAgent, connect: Connect) -> None:
    client = connect()
    client.register("job", 2222, check_script="exit 0")
    body = agent.requests[0].body
    assert body is not None
    assert body["check"] == {"interval": "30s", "script": "exit 0"}
    assert not client.keeps_alive("job", 2222)
    assert [entry["Port"] for entry in client.lookup("job")] == [2222]


def test_an_agent_that_refuses_is_named_with_its_status(agent: ConsulAgent, connect: Connect) -> None:
    client = connect()
    agent.refuse_with = 403
    with pytest.raises(ConsulException, match=r"cannot register job-2222, status 403: no") as refused:
        client.register("job", 2222)
    assert refused.value.status == 403
    assert isinstance(refused.value, UnavailableError)
    assert ConsulException("no answer").status == 0, "no status of an answer"
    with pytest.raises(ConsulException, match=r"cannot deregister job-2222, status 403"):
        client.deregister("job", 2222)
    assert client.lookup("job") == []
    assert not client.keeps_alive("job", 2222)


def test_heartbeats_come_again_and_again(agent: ConsulAgent, connect: Connect) -> None:
    client = connect(heartbeat_seconds=0.01)
    client.register("job", 2222)
    eventually(lambda: agent.paths("GET").count("/v1/agent/check/pass/service:job-2222") > 5, "five heartbeats")


def test_a_service_lost_by_its_agent_is_registered_again(agent: ConsulAgent, connect: Connect) -> None:
    client = connect(heartbeat_seconds=0.01, retry_seconds=0.01)
    client.register("job", 2222, {"index": 3})
    agent.stop()
    with pytest.raises(OSError, match=r"refused|No such file"):
        client.lookup("job")
    agent.start()
    eventually(lambda: [entry["Tags"] for entry in client.lookup("job")] == [{"index": "3"}], "registered again")


def test_a_service_that_is_no_longer_wanted_is_not_registered_again(agent: ConsulAgent, connect: Connect) -> None:
    client = connect(heartbeat_seconds=0.01, retry_seconds=0.01)
    asked = threading.Event()

    def still_wanted() -> bool:
        asked.set()
        return False

    client.register("job", 2222, still_wanted=still_wanted)
    agent.stop()
    agent.start()
    assert asked.wait(20)
    client.close()
    assert client.lookup("job") == []


def test_a_service_that_is_replaced_while_it_reregisters_is_removed_again(agent: ConsulAgent, connect: Connect) -> None:
    client = connect(heartbeat_seconds=0.01, retry_seconds=0.01)
    answers = [True, False]  # nobody else yet; then somebody
    client.register("job", 2222, still_wanted=lambda: answers.pop(0))
    agent.stop()
    agent.start()
    eventually(lambda: not client.keeps_alive("job", 2222), "it gives up")
    assert answers == []
    assert agent.services == {}


def test_registering_again_leaves_one_heartbeat(connect: Connect) -> None:
    client = connect()
    for _ in range(3):
        client.register("job", 2222)
    beating = [thread.name for thread in threading.enumerate() if thread.name.startswith("heartbeat-")]
    assert beating == ["heartbeat-job-2222"]


def test_a_fresh_answer_is_taken_from_the_cache(agent: ConsulAgent, connect: Connect) -> None:
    clock = FakeClock()
    client = connect(clock=clock)
    client.register("job", 1)
    client.lookup("job", cachetime=10)
    agent.services.clear()
    clock.advance(10)
    assert [entry["Port"] for entry in client.lookup("job", cachetime=10)] == [1]
    client.lookup("job", cachetime=10).clear()
    assert len(client.lookup("job", cachetime=10)) == 1
    clock.advance(0.5)
    assert client.lookup("job", cachetime=10) == []
    agent.services.clear()
    assert client.lookup("job") == []


def test_the_first_lookup_of_a_cached_name_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    client = Client("127.0.0.1", 1, clock=clock)
    timeouts: list[float] = []

    def ask(method: str, path: str, *, timeout: float, **_: object) -> consul_client.HttpAnswer:
        timeouts.append(timeout)
        return consul_client.HttpAnswer(200, b"[]")

    monkeypatch.setattr(client, "ask", ask)
    client.lookup("a")
    client.lookup("b", timeout=7)
    client.lookup("c", cachetime=5)
    clock.advance(6)
    client.lookup("c", cachetime=5)
    assert timeouts == [3, 7, 30, 3]


def test_names_are_quoted(agent: ConsulAgent, connect: Connect) -> None:
    client = connect()
    client.register("a b&c=d", 1)
    assert [entry["Port"] for entry in client.lookup("a b&c=d")] == [1]
    client.deregister("a b&c=d", 1)
    assert client.lookup("a b&c=d") == []


def test_requests_to_stock_consul_follow_its_documents(
    agent: ConsulAgent, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", "secret")
    client = connect(StockClient)
    client.register("job", 2222, {"index": 0, "name": "ps", "ip": "fd00::1"})
    assert client.lookup("job") == [
        {"Host": "127.0.0.1", "Port": 2222, "Tags": {"index": "0", "name": "ps", "ip": "fd00::1"}}
    ]
    client.register("job", 2223, check_script="exit 0")
    client.deregister("job", 2222)
    assert agent.tokens == ["secret"] * 5
    assert [(request.method, request.path) for request in agent.requests] == [
        ("PUT", "/v1/agent/service/register"),
        ("PUT", "/v1/agent/check/pass/service:job-2222"),
        ("GET", "/v1/health/service/job?passing=true"),
        ("PUT", "/v1/agent/service/register"),
        ("PUT", "/v1/agent/service/deregister/job-2222"),
    ]
    assert agent.requests[0].body == {
        "ID": "job-2222",
        "Name": "job",
        "Port": 2222,
        "Check": {"TTL": "60s"},
        "Tags": ["index:0", "name:ps", "ip:fd00::1"],
    }
    body = agent.requests[3].body
    assert body is not None
    assert body["Check"] == {"Interval": "30s", "Args": ["sh", "-c", "exit 0"]}


def test_an_agent_on_ipv6_is_reached() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)) as server:
        client = Client("::1", server.getsockname()[1])

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

        thread = threading.Thread(target=answer)
        thread.start()
        assert client.lookup("job") == []
        thread.join()


def test_an_answer_that_breaks_off_is_a_connection_error() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectionError, match="broken answer to GET"):
            Client("127.0.0.1", server.getsockname()[1]).lookup("job")
        thread.join()


def test_an_endless_response_is_rejected() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        sent: list[int] = []

        def answer() -> None:
            peer, _ = server.accept()
            with peer, suppress(OSError):  # the client hangs up
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n[")
                for _ in range(64):
                    peer.sendall(b" " * (1 << 20))
                    sent.append(1)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectionError, match=r"the answer to GET .* is larger than 16777216 bytes"):
            Client("127.0.0.1", server.getsockname()[1]).lookup("job")
        thread.join()
        assert len(sent) < 64


@pytest.mark.parametrize("client_class", [Client, StockClient])
@pytest.mark.parametrize("answer", ["", "<html>busy</html>", "[", "null", '{"error": 1}', "[1]", '"[]"'])
def test_an_answer_that_is_no_list_of_instances_is_a_connection_error(
    agent: ConsulAgent, connect: Connect, client_class: type[Client], answer: str
) -> None:
    client = connect(client_class)
    agent.lookups_say = answer
    with pytest.raises(
        ConnectionError, match=r"broken answer to lookup job: expected a JSON list of objects, got "
    ) as e:
        client.lookup("job", cachetime=10)
    assert repr(answer) in str(e.value)
    agent.lookups_say = None
    assert client.lookup("job", cachetime=10) == [], "a broken answer is not kept"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("a bug"), ValueError("no JSON"), RuntimeError("odd"), KeyError("Port")]
)
def test_heartbeats_continue_whatever_a_beat_raises(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    beats, enough = 0, threading.Event()

    def beat() -> bool:
        nonlocal beats
        beats += 1
        if beats == 3:
            enough.set()
        if beats % 2:
            raise error
        return True

    heartbeat = start_heartbeat(beat, lambda: False, name="job-1", interval_seconds=0.001, retry_seconds=0.002)
    assert enough.wait(20)
    assert heartbeat.is_alive()
    heartbeat.close()
    assert heartbeat.last_error is error
    assert f"thread heartbeat-job-1 failed, next in 0.002 s: {error!r}" in caplog.text


def test_the_agent_address_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own_socket = tmp_path / "consul.sock"
    monkeypatch.setattr(consul_client, "SOCKET_PATH", str(own_socket))
    assert (Client().host, Client().port) == ("127.0.0.1", 2280)
    assert StockClient().port == 8500
    own_socket.touch()
    assert Client().host == str(own_socket)
    monkeypatch.setenv("TCE_HOST_IP", "10.0.0.2")
    assert Client().host == "10.0.0.2"
    monkeypatch.setenv("CONSUL_HTTP_HOST", "10.0.0.1")
    monkeypatch.setenv("CONSUL_HTTP_PORT", "99")
    assert (Client().host, Client().port) == ("10.0.0.1", 99)
    assert (Client("h", 1).host, Client("h", 1).port) == ("h", 1)


def test_a_missing_socket_is_named(tmp_path: Path) -> None:
    with closing(UnixHTTPConnection(str(tmp_path / "none"), timeout=1)) as connection, pytest.raises(FileNotFoundError):
        connection.request("GET", "/")
