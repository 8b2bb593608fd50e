"""The times and counts that the original's users know, where nobody says otherwise."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest

from monolith.cluster import NodeAliveChecker, fetch_ps_cluster_from_file, get_training_cluster
from monolith.cluster.discovery import (
    Client,
    ConsulServiceDiscovery,
    MLPServiceDiscovery,
    ZKServiceDiscovery,
    consul_client,
)
from monolith.cluster.discovery.consul import retry_with_socket_error
from monolith.cluster.runtimes.mlp import wait_for_port
from monolith.testing import FakeClock


@pytest.mark.parametrize(
    ("call", "name", "default"),
    [
        (NodeAliveChecker, "timeout", 1),
        (NodeAliveChecker, "num_thread", 10),
        (Client.ask, "timeout", 15),
        (ConsulServiceDiscovery, "retry_time_secs", 3),
        (retry_with_socket_error, "max_backoff_seconds", 5),
        (ZKServiceDiscovery, "max_tries", 3),
        (ZKServiceDiscovery, "delay", 5),
        (ZKServiceDiscovery, "period_seconds", 1800),
        (MLPServiceDiscovery.query, "skip_port_check", False),
        (wait_for_port, "timeout_seconds", None),
        (get_training_cluster, "timeout_seconds", None),
        (get_training_cluster, "failure_handler", None),
        (fetch_ps_cluster_from_file, "timeout", 1800),
    ],
)
def test_defaults(call: Callable[..., Any], name: str, default: object) -> None:
    assert inspect.signature(call).parameters[name].default == default


def test_the_socket_of_an_agent_is_where_fleets_put_it() -> None:
    assert consul_client.SOCKET_PATH == "/opt/tmp/sock/consul.sock"


def test_a_heartbeat_comes_twice_in_its_time_to_live_and_soon_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[float, float]] = []

    def start(*_: object, name: str, interval_seconds: float, retry_seconds: float) -> None:
        assert name == "job-2222"
        started.append((interval_seconds, retry_seconds))

    monkeypatch.setattr(consul_client, "start_heartbeat", start)
    client = Client("127.0.0.1", 1)
    monkeypatch.setattr(client, "ask", lambda *_, **__: consul_client.HttpAnswer(200, b""))
    client.register("job", 2222)
    assert started == [(30, 2)]


def test_a_query_has_fifteen_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("127.0.0.1", 1)
    timeouts: list[float] = []

    def lookup(name: str, timeout: float) -> list[dict[str, Any]]:
        timeouts.append(timeout)
        return []

    monkeypatch.setattr(client, "lookup", lookup)
    assert ConsulServiceDiscovery("job", client=client).query("ps") == {}
    assert timeouts == [15]


def test_there_are_five_tries_and_pauses_from_zero_to_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []
    tries: list[float] = []
    clock = FakeClock()

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return float(len(drawn))

    def fail() -> None:
        tries.append(clock.monotonic())
        raise ConnectionResetError

    monkeypatch.setattr(random, "uniform", draw)
    with pytest.raises(ConnectionResetError):
        retry_with_socket_error(fail, clock=clock)
    assert drawn == [(0, 5)] * 4
    assert tries == [0, 1, 3, 6, 10]
