"""What every discovery service does alike. Services that are told where everybody is pass the part that asks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from discovery_backends import PS, READABLE, WORKERS, WRITABLE, Backend, WritableBackend, ZooKeeperBackend, eventually
from monolith.cluster.discovery import ServiceDiscovery
from zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.fixture
def stack(nothing_left_behind: None) -> Iterator[ExitStack]:
    """Ends what a test started, in reverse, before leaks are looked for."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=list(READABLE))
def readable(request: pytest.FixtureRequest, tmp_path: Path, stack: ExitStack) -> Backend:
    return READABLE[request.param](tmp_path, stack)


@pytest.fixture(
    scope="session",
    params=[pytest.param(name, marks=[pytest.mark.slow] if name == "ray" else []) for name in WRITABLE],
)
def service(request: pytest.FixtureRequest) -> tuple[str, object]:
    """The name of a service, and the server of it that all tests share, where there is one."""
    shared = {"zookeeper": "zookeeper", "ray": "ray_cluster"}.get(request.param)
    return request.param, shared and request.getfixturevalue(shared)


@pytest.fixture
def backend(service: tuple[str, object], tmp_path: Path, stack: ExitStack) -> WritableBackend:
    name, server = service
    backend = WRITABLE[name](tmp_path, stack)
    if isinstance(backend, ZooKeeperBackend):
        assert isinstance(server, ZooKeeperServer)
        backend.server = server
    return backend


def sees(discovery: ServiceDiscovery, name: str, expected: dict[int, str]) -> None:
    eventually(lambda: discovery.query(name) == expected, f"{name} is {expected}")


def test_listed_addresses_are_found_by_role_and_index(readable: Backend) -> None:
    discovery = readable.new()
    assert discovery.query("ps") == dict(enumerate(PS))
    assert discovery.query("worker") == dict(enumerate(WORKERS))
    assert {name: discovery.query_all()[name] for name in ("ps", "worker")} == {
        "ps": dict(enumerate(PS)),
        "worker": dict(enumerate(WORKERS)),
    }


def test_an_answer_about_a_list_is_the_callers(readable: Backend) -> None:
    discovery = readable.new()
    discovery.query("ps").clear()
    discovery.query_all()["worker"].clear()
    assert discovery.query("ps") == dict(enumerate(PS))
    assert discovery.query("worker") == dict(enumerate(WORKERS))


def test_closing_a_list_twice_is_harmless(readable: Backend) -> None:
    discovery = readable.client()
    discovery.close()
    discovery.close()


def test_a_role_that_is_not_listed_is_named(readable: Backend) -> None:
    with pytest.raises(ValueError, match="no_such_role"):
        readable.new().query("no_such_role")


def test_what_is_registered_is_found_and_what_is_deregistered_is_not(backend: WritableBackend) -> None:
    discovery = backend.new()
    assert discovery.query("ps") == {}
    discovery.register("ps", 0, "192.168.0.1:1001")
    discovery.register("ps", 1, "192.168.0.2:1002")
    sees(discovery, "ps", {0: "192.168.0.1:1001", 1: "192.168.0.2:1002"})
    discovery.deregister("ps", 0, "192.168.0.1:1001")
    sees(discovery, "ps", {1: "192.168.0.2:1002"})
    discovery.deregister("ps", 1, "192.168.0.2:1002")
    sees(discovery, "ps", {})
    assert discovery.query_all() == {}


def test_an_index_has_one_holder_the_last_one(backend: WritableBackend) -> None:
    discovery, other = backend.new(), backend.new()
    discovery.register("ps", 0, "192.168.0.1:1001")
    discovery.register("ps", 0, "192.168.0.1:1002")
    sees(discovery, "ps", {0: "192.168.0.1:1002"})
    other.register("ps", 0, "192.168.0.2:1003")
    sees(other, "ps", {0: "192.168.0.2:1003"})
    sees(discovery, "ps", {0: "192.168.0.2:1003"})


def test_registering_the_same_again_changes_nothing(backend: WritableBackend) -> None:
    discovery = backend.new()
    for _ in range(3):
        discovery.register("worker", 5, "192.168.0.1:1001")
    sees(discovery, "worker", {5: "192.168.0.1:1001"})
    discovery.deregister("worker", 5, "192.168.0.1:1001")
    sees(discovery, "worker", {})
    discovery.register("worker", 5, "192.168.0.1:1001")
    sees(discovery, "worker", {5: "192.168.0.1:1001"})


def test_roles_do_not_mix(backend: WritableBackend) -> None:
    discovery, other = backend.new(), backend.new()
    discovery.register("ps", 0, "192.168.0.1:1001")
    discovery.register("worker", 0, "192.168.0.1:1002")
    other.register("worker", 1, "192.168.0.2:1003")
    for asked in (discovery, other):
        sees(asked, "ps", {0: "192.168.0.1:1001"})
        sees(asked, "worker", {0: "192.168.0.1:1002", 1: "192.168.0.2:1003"})
        assert asked.query("chief") == {}
        assert asked.query_all() == {
            "ps": {0: "192.168.0.1:1001"},
            "worker": {0: "192.168.0.1:1002", 1: "192.168.0.2:1003"},
        }


def test_a_later_client_finds_the_nodes_registered_before(backend: WritableBackend) -> None:
    backend.new().register("ps", 7, "192.168.0.1:1001")
    sees(backend.new(), "ps", {7: "192.168.0.1:1001"})


def test_ipv6_addresses_are_found_as_they_were_registered(backend: WritableBackend) -> None:
    discovery = backend.new()
    discovery.register("ps", 0, "[fd00::1]:1001")
    sees(discovery, "ps", {0: "[fd00::1]:1001"})
    discovery.deregister("ps", 0, "[fd00::1]:1001")
    sees(discovery, "ps", {})


def test_deregistering_an_entry_that_is_not_held_changes_nothing(backend: WritableBackend) -> None:
    discovery = backend.new()
    discovery.deregister("ps", 0, "192.168.0.1:1001")
    discovery.register("ps", 0, "192.168.0.1:1002")
    discovery.deregister("ps", 0, "192.168.0.1:1001")
    discovery.deregister("ps", 1, "192.168.0.1:1003")
    sees(discovery, "ps", {0: "192.168.0.1:1002"})


def test_an_answer_is_the_callers(backend: WritableBackend) -> None:
    discovery = backend.new()
    discovery.register("ps", 0, "192.168.0.1:1001")
    sees(discovery, "ps", {0: "192.168.0.1:1001"})
    discovery.query("ps").clear()
    discovery.query_all()["ps"].clear()
    assert discovery.query("ps") == {0: "192.168.0.1:1001"}


@pytest.mark.parametrize(
    ("name", "index", "addr"),
    [
        ("ps", -1, "192.168.0.1:1001"),
        ("ps", 0, "192.168.0.1"),
        ("ps", 0, "::1:1001"),
        ("ps", 0, ""),
        ("", 0, "192.168.0.1:1001"),
        ("../ps", 0, "192.168.0.1:1001"),
        ("p s", 0, "192.168.0.1:1001"),
    ],
)
def test_what_cannot_be_registered_is_refused(backend: WritableBackend, name: str, index: int, addr: str) -> None:
    discovery = backend.new()
    with pytest.raises(ValueError, match=r"discovery: |address: "):
        discovery.register(name, index, addr)
    assert discovery.query_all() == {}


@pytest.mark.parametrize("name", ["", "../ps", "p s"])
def test_a_role_that_cannot_be_registered_is_not_queried(backend: WritableBackend, name: str) -> None:
    with pytest.raises(ValueError, match="discovery: a role is letters"):
        backend.new().query(name)


def test_many_nodes_register_concurrently(backend: WritableBackend) -> None:
    discovery = backend.new()
    expected = {index: f"192.168.0.1:{1000 + index}" for index in range(24)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda entry: discovery.register("worker", *entry), expected.items()))
    sees(discovery, "worker", expected)


def test_registered_nodes_are_found_again_when_the_service_recovers(backend: WritableBackend) -> None:
    discovery, other = backend.new(), backend.new()
    discovery.register("ps", 0, "192.168.0.1:1001")
    sees(other, "ps", {0: "192.168.0.1:1001"})
    backend.lose()
    backend.restart()
    for asked in (discovery, other):
        sees(asked, "ps", {0: "192.168.0.1:1001"})
    discovery.register("ps", 1, "192.168.0.1:1002")
    sees(other, "ps", {0: "192.168.0.1:1001", 1: "192.168.0.1:1002"})


def test_closing_twice_is_harmless_also_while_the_service_is_lost(backend: WritableBackend) -> None:
    with backend.client() as discovery:
        discovery.register("ps", 0, "192.168.0.1:1001")
        discovery.close()
    lonely = backend.client()
    lonely.register("ps", 1, "192.168.0.1:1002")
    backend.lose()
    lonely.close()
    backend.restart()
