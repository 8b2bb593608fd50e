"""Servers, credentials and the cleaning of paths."""

from __future__ import annotations

import builtins
import importlib
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from monolith.cluster.discovery import (
    MonolithKazooClient,
    clear_zk_path,
    default_zk_servers,
    is_ipv6_only,
    zookeeper_client,
)
from monolith.testing import FakeClock
from zookeeper_server import ZooKeeperServer

NINE_WEEKS = 9 * 7 * 86400.0


@pytest.fixture
def operator(zookeeper: ZooKeeperServer) -> Iterator[Any]:
    client = KazooClient(zookeeper.address)
    client.start()
    client.delete("/monolith", recursive=True) if client.exists("/monolith") else None
    yield client
    client.stop()
    client.close()


def created(operator: Any, path: str) -> float:
    """When a node was made, in seconds, by the server's clock."""
    return float(operator.exists(path).mtime) / 1000


def test_no_server_is_built_in() -> None:
    assert default_zk_servers() == default_zk_servers(use_ipv6=True) == ""


def test_built_in_servers_are_joined_by_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_client, "_HOSTS", ["10.0.0.1", "10.0.0.2"])
    monkeypatch.setattr(zookeeper_client, "_HOSTS_IPV6", ["fd00::1", "fd00::2"])
    monkeypatch.setenv("MY_HOST_IP", "10.0.0.9")
    assert default_zk_servers() == "10.0.0.1:2181,10.0.0.2:2181"
    assert default_zk_servers(use_ipv6=True) == "[fd00::1]:2181,[fd00::2]:2181"
    monkeypatch.delenv("MY_HOST_IP")
    monkeypatch.setenv("MY_HOST_IPV6", "fd00::9")
    assert default_zk_servers() == "[fd00::1]:2181,[fd00::2]:2181"


@pytest.mark.parametrize(
    ("variables", "ipv6_only"),
    [
        ({"MY_HOST_IP": "10.0.0.1"}, False),
        ({"MY_POD_IP": "10.0.0.1", "MY_HOST_IPV6": "fd00::1"}, False),
        ({"MY_HOST_IPV6": "fd00::1"}, True),
    ],
)
def test_the_fleets_variables_specify_the_address_families_of_a_host(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], ipv6_only: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_ipv6_only() is ipv6_only


def test_without_variables_the_resolver_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.1")
    assert not is_ipv6_only()

    def unknown(name: str) -> str:
        raise socket.gaierror(name)

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    assert is_ipv6_only()


def test_credentials_come_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MonolithKazooClient("h:1").auth_data == set()
    monkeypatch.setenv("ZK_AUTH", "user:password")
    assert MonolithKazooClient("h:1").auth_data == {("digest", "user:password")}
    assert MonolithKazooClient("h:1", auth_data=[("digest", "a:b")]).auth_data == {("digest", "a:b")}


def test_jobs_untouched_for_nine_weeks_are_removed(zookeeper: ZooKeeperServer, operator: Any) -> None:
    operator.create("/monolith/old/ps.0", b"h:1", makepath=True)
    operator.create("/monolith/busy/ps.0", b"h:1", makepath=True)
    made = created(operator, "/monolith/busy/ps.0")
    clear_zk_path(zookeeper.address, "mine", False, clock=FakeClock(made + NINE_WEEKS - 1))
    assert sorted(operator.get_children("/monolith")) == ["busy", "old"]
    while created(operator, "/monolith/busy/ps.0") <= made:  # until the server's clock has moved on
        operator.set("/monolith/busy/ps.0", b"h:2")
    clear_zk_path(zookeeper.address, "mine", False, clock=FakeClock(made + NINE_WEEKS + 0.0005))
    assert operator.get_children("/monolith") == ["busy"]


def test_a_job_with_a_live_process_is_never_stale(zookeeper: ZooKeeperServer, operator: Any) -> None:
    operator.create("/monolith/alive/ps.0", b"h:1", ephemeral=True, makepath=True)
    clear_zk_path(zookeeper.address, "mine", False, clock=FakeClock(created(operator, "/monolith") + 10 * NINE_WEEKS))
    assert operator.get_children("/monolith") == ["alive"]


def test_what_is_left_of_a_job_is_named_or_removed(zookeeper: ZooKeeperServer, operator: Any) -> None:
    clear_zk_path(zookeeper.address, "mine", False)
    assert operator.get_children("/monolith") == []
    for node in ("worker.0", "ps.0"):
        operator.create(f"/monolith/mine/{node}", b"h:1", makepath=True)
    with pytest.raises(ValueError, match=r"^there are \[ps\.0,worker\.0\] in monolith zk path$"):
        clear_zk_path(zookeeper.address, "mine", False)
    clear_zk_path(zookeeper.address, "mine", True)
    assert operator.get_children("/monolith") == []


def test_a_server_has_to_be_named() -> None:
    with pytest.raises(ValueError, match="set zk_server"):
        clear_zk_path(None, "mine", True)


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_kazoo(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("kazoo"):
            raise ModuleNotFoundError("No module named 'kazoo'", name="kazoo")
        return real_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", no_kazoo)
    monkeypatch.delitem(sys.modules, "monolith.cluster.discovery.zookeeper_client")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'monolith-torch\[zookeeper\]'"):
        importlib.import_module("monolith.cluster.discovery.zookeeper_client")
