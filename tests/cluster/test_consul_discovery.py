"""Registering with Consul: retries, visibility, and holders that went stale."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consul_agent import ConsulAgent
from discovery_backends import eventually
from monolith.cluster.discovery import Client, ConsulException, ConsulServiceDiscovery, StockClient, deregister_all
from monolith.cluster.discovery.consul import retry_with_socket_error
from monolith.testing import FakeClock

Make = Callable[..., ConsulServiceDiscovery]


class Recorder(Client):
    """A client that notes which agents it was told to deregister at."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.deregistered: list[tuple[int, str | None]] = []

    def deregister(self, name: str, port: int, host: str | None = None) -> None:
        self.deregistered.append((port, host))
        super().deregister(name, port)


@pytest.fixture
def agent() -> Iterator[ConsulAgent]:
    with ConsulAgent() as agent:
        yield agent


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make(agent: ConsulAgent, clock: FakeClock) -> Iterator[Make]:
    made: list[ConsulServiceDiscovery] = []

    def discovery(client_class: type[Client] = Client, **options: Any) -> ConsulServiceDiscovery:
        client = client_class(agent.host, agent.port, heartbeat_seconds=3600)
        options = {"client": client, "clock": clock, "agent_per_host": False, **options}
        made.append(ConsulServiceDiscovery("job-uuid", **options))
        return made[-1]

    yield discovery
    for each in made:
        each.close()


def test_a_dead_agent_is_tried_five_times(
    agent: ConsulAgent, make: Make, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    discovery = make()
    agent.stop()
    with pytest.raises(ConnectionRefusedError):
        discovery.query("ps")
    assert clock.monotonic() == 4 * 2.5, "four pauses from 0 to 5 s"


def test_a_service_is_registered_again_after_a_response_that_is_no_json(agent: ConsulAgent, make: Make) -> None:
    """The agent restarts, forgets the service, and for a while says that it is busy where it should list instances."""
    client = Client(agent.host, agent.port, heartbeat_seconds=0.01, retry_seconds=0.01)
    discovery = make(client=client)
    discovery.register("ps", 0, "127.0.0.1:1001")
    agent.lookups_say = "<html>busy</html>"
    agent.stop()
    agent.requests.clear()
    agent.start()
    eventually(lambda: len([path for path in agent.paths("GET") if "lookup" in path]) > 1, "it asks more than once")
    assert agent.services == {}
    agent.lookups_say = None
    eventually(lambda: discovery.query("ps") == {0: "127.0.0.1:1001"}, "registered again")
    assert client.keeps_alive("job-uuid", 1001)


def test_entries_of_another_shape_are_skipped(agent: ConsulAgent, make: Make) -> None:
    whole = {"Port": 1, "Tags": {"name": "ps", "index": "0", "ip": "10.0.0.1"}}
    odd: list[dict[str, Any]] = [
        {},
        {"Port": None, "Tags": whole["Tags"]},
        {"Port": "http", "Tags": whole["Tags"]},
        {"Port": 1, "Tags": ["name:ps", "index:0"]},
        {"Port": 1, "Tags": {"name": "ps", "index": "first", "ip": "10.0.0.1"}},
    ]
    agent.lookups_say = json.dumps([*odd, whole])
    assert make().query_all() == {"ps": {0: "10.0.0.1:1"}}
    client = StockClient(agent.host, agent.port)
    agent.lookups_say = json.dumps([{}, {"Service": []}, {"Service": {"Port": 1, "Tags": [3, "no colon"]}}])
    assert [entry["Port"] for entry in client.lookup("job-uuid")] == [None, None, 1]
    assert make(client=client).query_all() == {}


def test_a_call_is_tried_until_it_works(clock: FakeClock) -> None:
    outcomes: list[Exception | str] = [TimeoutError(), ConnectionResetError(), TimeoutError(), TimeoutError(), "done"]

    def call() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert retry_with_socket_error(call, clock=clock) == "done"
    assert outcomes == []


def test_the_fifth_failure_is_raised(clock: FakeClock) -> None:
    tries = 0

    def call() -> None:
        nonlocal tries
        tries += 1
        raise TimeoutError(f"number {tries}")

    with pytest.raises(TimeoutError, match="number 5"):
        retry_with_socket_error(call, clock=clock)
    assert tries == 5


def test_a_refusal_is_not_tried_again(agent: ConsulAgent, make: Make, clock: FakeClock) -> None:
    discovery = make()
    agent.refuse_with = 403
    with pytest.raises(ConsulException):
        discovery.register("ps", 0, "10.0.0.1:1001")
    assert clock.monotonic() == 0
    assert len(agent.paths("PUT")) == 1


def test_a_machine_that_stays_invisible_is_an_error_after_three_minutes(
    agent: ConsulAgent, make: Make, clock: FakeClock
) -> None:
    discovery = make()
    discovery.register("ps", 0, "10.0.0.1:1000")
    agent.hidden_ports.add(1001)
    with pytest.raises(OSError, match=r"ps 1 at 10\.0\.0\.1:1001 .* not visible after 180 s; .*blacklisted"):
        discovery.register("ps", 1, "10.0.0.1:1001")
    assert clock.monotonic() == 180
    assert list(agent.services) == ["job-uuid-1000"]


def test_registering_waits_until_it_is_visible(
    agent: ConsulAgent, make: Make, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.hidden_ports.add(1001)
    sleep = clock.sleep

    def show_later(seconds: float) -> None:
        sleep(seconds)
        if clock.monotonic() >= 42:
            agent.hidden_ports.clear()

    monkeypatch.setattr(clock, "sleep", show_later)
    discovery = make()
    discovery.register("ps", 1, "10.0.0.1:1001")
    assert clock.monotonic() == 45
    assert discovery.query("ps") == {1: "10.0.0.1:1001"}


def test_a_stale_holder_is_removed_at_the_agent_of_its_host(agent: ConsulAgent, make: Make) -> None:
    make().register("ps", 0, "10.0.0.1:1001")
    discovery = make(Recorder, agent_per_host=True)
    discovery.register("ps", 0, "10.0.0.2:1001")
    assert isinstance(discovery._client, Recorder)
    assert discovery._client.deregistered == [(1001, "10.0.0.1")]
    discovery.register("ps", 0, "10.0.0.2:1002")
    assert discovery._client.deregistered[1:] == [(1001, None)]
    assert discovery.query("ps") == {0: "10.0.0.2:1002"}


def test_a_holder_that_cannot_be_removed_is_waited_for_and_then_left(
    agent: ConsulAgent, make: Make, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make().register("ps", 0, "10.0.0.1:1001")
    discovery = make(retry_time_secs=3.0)

    def refuse(*args: object) -> None:
        raise ConsulException("no", 500)

    monkeypatch.setattr(discovery._client, "deregister", refuse)
    discovery.register("ps", 0, "10.0.0.1:1002")
    assert clock.monotonic() == 180
    assert discovery.query("ps") == {0: "10.0.0.1:1002"}


def test_a_replaced_process_does_not_register_again(agent: ConsulAgent, clock: FakeClock, make: Make) -> None:
    client = Client(agent.host, agent.port, heartbeat_seconds=0.01, retry_seconds=0.01)
    old = make(client=client)
    old.register("ps", 0, "10.0.0.1:1001")
    new = make()
    new.register("ps", 0, "10.0.0.2:1002")
    eventually(lambda: not client.keeps_alive("job-uuid", 1001), "the old one lets go")
    assert new.query("ps") == {0: "10.0.0.2:1002"}
    assert list(agent.services) == ["job-uuid-1002"]


def test_entries_of_other_services_are_skipped(agent: ConsulAgent, make: Make) -> None:
    discovery = make()
    for port, tags in ((1, None), (2, {"name": "ps", "ip": "10.0.0.1"}), (3, {"name": "ps", "ip": "h", "index": "x"})):
        discovery._client.register("job-uuid", port, tags)
    discovery.register("ps", 0, "10.0.0.1:1001")
    assert discovery.query_all() == {"ps": {0: "10.0.0.1:1001"}}


def test_all_entries_of_a_job_can_be_removed(agent: ConsulAgent, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = make()
    discovery.register("ps", 0, "10.0.0.1:1001")
    discovery.register("ps", 1, "10.0.0.1:1002")
    make().register("worker", 0, "10.0.0.2:1003")
    monkeypatch.setenv("CONSUL_HTTP_HOST", agent.host)
    monkeypatch.setenv("CONSUL_HTTP_PORT", str(agent.port))
    deregister_all("job-uuid", agent_per_host=False)
    assert discovery.query_all() == {}
    assert agent.services == {}


def test_a_job_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="it is the uuid of the job"):
        ConsulServiceDiscovery("")


@pytest.mark.parametrize(
    ("host", "per_host"), [("127.0.0.1", True), ("/run/consul.sock", True), ("::1", True), ("10.9.9.9", False)]
)
def test_an_agent_on_this_machine_is_one_of_many(host: str, per_host: bool) -> None:
    assert ConsulServiceDiscovery("job", client=Client(host, 1))._agent_per_host is per_host
