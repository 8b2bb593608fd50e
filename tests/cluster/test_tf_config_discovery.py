"""What TF_CONFIG says about the others and about this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monolith.cluster.discovery import TfConfigServiceDiscovery

CLUSTER = {
    "chief": ["host0:2222"],
    "ps": ["host1:2222", "host2:2222"],
    "worker": ["host3:2222", "host4:2222", "host5:2222"],
}


def config(kind: str, index: int, **jobs: list[str]) -> dict[str, Any]:
    return {"cluster": jobs or CLUSTER, "task": {"type": kind, "index": index}}


def test_the_chief_stands_in_front_of_the_workers() -> None:
    discovery = TfConfigServiceDiscovery(config("worker", 1))
    assert discovery.query("ps") == {0: "host1:2222", 1: "host2:2222"}
    assert discovery.query("worker") == {0: "host0:2222", 1: "host3:2222", 2: "host4:2222", 3: "host5:2222"}
    assert discovery.addr == "host4:2222"
    assert discovery.server_type == "worker"
    assert discovery.index == 2


@pytest.mark.parametrize(
    ("kind", "index", "server_type", "own_index", "addr"),
    [
        ("chief", 0, "worker", 0, "host0:2222"),
        ("worker", 0, "worker", 1, "host3:2222"),
        ("ps", 1, "ps", 1, "host2:2222"),
    ],
)
def test_a_task_has_its_role_index_and_address(
    kind: str, index: int, server_type: str, own_index: int, addr: str
) -> None:
    discovery = TfConfigServiceDiscovery(json.dumps(config(kind, index)))
    assert (discovery.server_type, discovery.index, discovery.addr) == (server_type, own_index, addr)
    assert discovery.query(server_type)[own_index] == addr


@pytest.mark.parametrize("jobs", [{"worker": ["a:1", "b:1"]}, {"worker": ["a:1", "b:1"], "chief": []}])
def test_without_a_chief_workers_count_from_zero(jobs: dict[str, list[str]]) -> None:
    discovery = TfConfigServiceDiscovery(config("worker", 1, **jobs))
    assert discovery.index == 1
    assert discovery.query("worker") == {0: "a:1", 1: "b:1"}
    assert discovery.query_all() == {"worker": {0: "a:1", 1: "b:1"}}


def test_registering_changes_nothing() -> None:
    discovery = TfConfigServiceDiscovery(config("ps", 0))
    discovery.register("ps", 0, "elsewhere:1")
    discovery.deregister("ps", 1, "host2:2222")
    assert discovery.query("ps") == {0: "host1:2222", 1: "host2:2222"}


@pytest.mark.parametrize("name", ["chief", "evaluator", ""])
def test_only_servers_and_workers_can_be_queried(name: str) -> None:
    with pytest.raises(ValueError, match="name must be 'ps' or 'worker', got"):
        TfConfigServiceDiscovery(config("ps", 0)).query(name)


@pytest.mark.parametrize(
    "broken",
    [
        "[]",
        "{}",
        '{"cluster": {}}',
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps"}}',
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 1e999}}',
    ],
)
def test_another_shape_is_shown(broken: str) -> None:
    with pytest.raises(ValueError, match="TF_CONFIG: expected"):
        TfConfigServiceDiscovery(broken)


@pytest.mark.parametrize(("kind", "index"), [("ps", 2), ("ps", -1), ("evaluator", 0)])
def test_a_task_that_is_not_in_the_cluster_is_refused(kind: str, index: int) -> None:
    with pytest.raises(ValueError, match=f"task {kind} {index} is not in the cluster"):
        TfConfigServiceDiscovery(config(kind, index))
