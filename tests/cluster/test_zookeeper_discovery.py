"""Discovery on a real ZooKeeper that is paused, killed and restarted, and whose sessions end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from discovery_backends import eventually
from monolith.cluster.discovery import MonolithKazooClient, ZKServiceDiscovery, zookeeper
from monolith.errors import UnavailableError
from zookeeper_server import SESSION_SECONDS, ZooKeeperServer

Make = Callable[..., ZKServiceDiscovery]


@pytest.fixture(autouse=True)
def _server_first(zookeeper: ZooKeeperServer) -> None:
    """The shared server is there before leaks are looked for."""


@pytest.fixture
def make(zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes discoveries of one job on the server, and closes them."""
    with ExitStack() as stack:

        def discovery(**options: Any) -> ZKServiceDiscovery:
            client = MonolithKazooClient(zookeeper.address, timeout=SESSION_SECONDS)
            return stack.enter_context(
                ZKServiceDiscovery(request.node.name, client=client, **{"delay": 0.1, **options})
            )

        yield discovery


@pytest.fixture
def operator(zookeeper: ZooKeeperServer) -> Iterator[Any]:
    """A plain client, which does to nodes what a test asks."""
    client = KazooClient(zookeeper.address, timeout=SESSION_SECONDS)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"/monolith/{request.node.name}/ps.0"


def expire(zookeeper: ZooKeeperServer, client: Any) -> None:
    """End somebody's session, as the server does when it has heard nothing for too long."""
    twin = KazooClient(zookeeper.address, client_id=client.client_id, timeout=SESSION_SECONDS)
    twin.start()
    twin.stop()
    twin.close()


def test_a_process_is_an_ephemeral_node_of_its_job(make: Make, operator: Any, path: str) -> None:
    discovery = make()
    discovery.register("ps", 0, "10.0.0.1:1001")
    data, stat = operator.get(path)
    assert data == b"10.0.0.1:1001"
    assert stat.ephemeralOwner == discovery._client.client_id[0]
    discovery.close()
    eventually(lambda: operator.exists(path) is None, "the node goes with the process")


def test_what_was_changed_by_hand_is_repaired(make: Make, operator: Any, path: str) -> None:
    discovery = make(period_seconds=0.05)
    discovery.register("ps", 0, "10.0.0.1:1001")
    operator.set(path, b"wrong")
    eventually(lambda: bytes(operator.get(path)[0]) == b"10.0.0.1:1001", "the data is repaired")
    operator.delete(path)
    eventually(lambda: operator.exists(path) is not None, "the node is made again")
    eventually(lambda: discovery.query("ps") == {0: "10.0.0.1:1001"}, "and seen")


@pytest.mark.parametrize("error", [KazooTimeoutError("slow"), ValueError("a bug")])
def test_the_thread_outlives_what_a_chore_raises(
    make: Make, operator: Any, path: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    discovery = make(period_seconds=0.02)
    discovery.register("ps", 0, "10.0.0.1:1001")
    failures = {"create": threading.Semaphore(0), "get_children": threading.Semaphore(0)}

    def failing(name: str) -> Callable[..., None]:
        def fail(*args: Any, **options: Any) -> None:
            failures[name].release()
            raise error

        return fail

    with monkeypatch.context() as patch:
        for name in failures:
            patch.setattr(discovery._client, name, failing(name))
        operator.create(path.replace("ps.0", "ps.1"), b"10.0.0.2:1")  # the watch asks for a refresh
        assert all(failed.acquire(timeout=20) for failed in failures.values() for _ in range(2))
    operator.delete(path)
    eventually(lambda: operator.exists(path) is not None, "the node is made again")
    eventually(lambda: len(discovery.query("ps")) == 2, "and both are seen")


def test_a_session_that_ended_registers_again(make: Make, zookeeper: ZooKeeperServer, operator: Any, path: str) -> None:
    discovery = make()
    discovery.register("ps", 0, "10.0.0.1:1001")
    old_session = discovery._client.client_id[0]
    expire(zookeeper, discovery._client)

    def has_new_owner() -> bool:
        stat = operator.exists(path)
        return stat is not None and stat.ephemeralOwner not in {0, old_session}

    eventually(has_new_owner, "a new session holds the node")
    eventually(lambda: discovery.query("ps") == {0: "10.0.0.1:1001"}, "and sees it")


def test_a_server_that_hangs_longer_than_a_session_is_survived(make: Make, zookeeper: ZooKeeperServer) -> None:
    discovery, other = make(), make()
    discovery.register("ps", 0, "10.0.0.1:1001")
    eventually(lambda: other.query("ps") == {0: "10.0.0.1:1001"}, "seen before")
    suspended = threading.Event()
    discovery._client.add_listener(lambda state: suspended.set() if state != "CONNECTED" else None)
    zookeeper.pause()
    try:
        assert suspended.wait(20), "the connection is given up"
        assert other.query("ps") == {0: "10.0.0.1:1001"}, "what was known last is still answered"
    finally:
        zookeeper.resume()
    discovery.register("worker", 0, "10.0.0.1:1002")
    for each in (discovery, other):
        expected = {"ps": {0: "10.0.0.1:1001"}, "worker": {0: "10.0.0.1:1002"}}
        eventually(lambda each=each, expected=expected: each.query_all() == expected, "all is back")  # type: ignore[misc]


def test_the_node_of_an_expiring_session_is_taken_by_the_new_one(make: Make, operator: Any, path: str) -> None:
    operator.create(path, b"10.0.0.1:1001", ephemeral=True, makepath=True)
    discovery = make()
    discovery.register("ps", 0, "10.0.0.1:1001")
    operator.stop()  # the first holder's session ends; the node is not its any more
    operator.start()
    assert bytes(operator.get(path)[0]) == b"10.0.0.1:1001"
    assert operator.exists(path).ephemeralOwner == discovery._client.client_id[0]


def test_a_replaced_process_releases_its_node(make: Make, operator: Any, path: str) -> None:
    old, new = make(period_seconds=0.02), make(period_seconds=0.02)
    old.register("ps", 0, "10.0.0.1:1001")
    new.register("ps", 0, "10.0.0.2:1002")
    eventually(lambda: not old._own, "the old one has let go")
    assert bytes(operator.get(path)[0]) == b"10.0.0.2:1002"
    assert new._own


def test_a_node_without_an_address_is_ignored(make: Make, operator: Any, path: str) -> None:
    discovery = make()
    for name, data in (("ps.0", b""), ("ps.x", b"h:1"), ("ps", b"h:1"), ("worker.1", b"10.0.0.1:1")):
        operator.create(path.replace("ps.0", name), data, makepath=True)
    eventually(lambda: discovery.query_all() == {"worker": {1: "10.0.0.1:1"}}, "only the worker counts")
    operator.set(path, b"10.0.0.2:2")
    eventually(lambda: discovery.query("ps") == {0: "10.0.0.2:2"}, "now it has one")
    operator.set(path, b"")
    eventually(lambda: discovery.query("ps") == {}, "and lost it again")


def test_a_job_path_that_was_removed_is_made_again(make: Make, operator: Any, path: str) -> None:
    discovery = make()
    operator.delete(path.rpartition("/")[0])
    discovery.register("ps", 0, "10.0.0.1:1001")
    assert discovery.query("ps") == {0: "10.0.0.1:1001"}


def test_deregistering_a_node_clears_its_due_chores(make: Make) -> None:
    """What stayed due would keep the thread of the chores busy for ever."""
    discovery = make()
    discovery.register("ps", 0, "10.0.0.1:1001")
    assert discovery._upkeep._due
    discovery.deregister("ps", 0, "10.0.0.1:1001")
    assert not discovery._upkeep._due


def test_registering_without_a_server_fails_after_the_tries(make: Make, zookeeper: ZooKeeperServer) -> None:
    discovery = make(max_tries=2, delay=0.05)
    zookeeper.kill()
    try:
        eventually(lambda: not discovery._client.connected, "the loss is noticed")
        with pytest.raises(UnavailableError, match="zookeeper: cannot register ps 0, tried 2 times"):
            discovery.register("ps", 0, "10.0.0.1:1001")
    finally:
        zookeeper.start()
    eventually(lambda: bool(discovery._client.connected), "connected again")
    discovery.register("ps", 0, "10.0.0.1:1001")


def test_a_connection_that_goes_while_a_node_is_compared_is_a_failed_try(
    make: Make, operator: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    discovery = make(max_tries=2, delay=0.01)
    operator.create(path, b"10.0.0.9:9", makepath=True)
    tries: list[None] = []
    monkeypatch.setattr(MonolithKazooClient, "client_id", property(lambda _: tries.append(None)))
    with pytest.raises(UnavailableError, match=r"tried 2 times.*no session"):
        discovery.register("ps", 0, "10.0.0.1:1001")
    assert len(tries) == 2
    monkeypatch.undo()
    discovery.register("ps", 0, "10.0.0.1:1001")
    assert discovery.query("ps") == {0: "10.0.0.1:1001"}


def test_no_server_at_all_is_a_time_out_that_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, unused_address: str
) -> None:
    monkeypatch.setattr(zookeeper, "START_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(KazooTimeoutError):
        ZKServiceDiscovery("job", unused_address)


def test_servers_have_fifteen_seconds_to_answer_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def start(self: MonolithKazooClient, timeout: float) -> None:
        waits.append(timeout)
        raise KazooTimeoutError("nobody")

    monkeypatch.setattr(MonolithKazooClient, "start", start)
    with pytest.raises(KazooTimeoutError):
        ZKServiceDiscovery("job", "127.0.0.1:1")
    assert waits == [15]


def test_a_server_has_to_be_named() -> None:
    with pytest.raises(ValueError, match="no server given and none is built in; set zk_server"):
        ZKServiceDiscovery("job")


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_job_needs_a_name(name: str, unused_address: str) -> None:
    with pytest.raises(ValueError, match="job name must be one part of a path"):
        ZKServiceDiscovery(name, unused_address)


def test_credentials_open_what_is_closed_to_others(
    make: Make, operator: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = path.rpartition("/")[0]
    operator.ensure_path("/monolith")
    operator.create(job, acl=[make_digest_acl("trainer", "secret", all=True)])
    with pytest.raises(NoAuthError):
        make()
    monkeypatch.setenv("ZK_AUTH", "trainer:secret")
    make().register("ps", 0, "10.0.0.1:1001")
    operator.add_auth("digest", "trainer:secret")
    operator.set_acls(job, OPEN_ACL_UNSAFE)  # other tests of this server remove what is there
