"""Waiting for the cluster, on a clock that the test owns, and the file of parameter servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monolith.cluster import (
    ClusterRequest,
    Incomplete,
    fetch_ps_cluster_from_file,
    generate_session_config,
    get_ps_cluster_file_name,
    get_training_cluster,
    manager,
    save_ps_cluster_to_file,
)
from monolith.cluster.discovery import HostServiceDiscovery, ServiceDiscovery, StaticServiceDiscovery
from monolith.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError
from monolith.files import text_files
from monolith.observe import process_recorder
from monolith.testing import FakeClock

PS = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]


class Unfolding(ServiceDiscovery):
    """Answers that depend on the time; an answer may be an error."""

    def __init__(self, clock: FakeClock, answer: Callable[[str, float], dict[int, str]]) -> None:
        self.clock = clock
        self.answer = answer
        self.asked: list[tuple[str, float]] = []

    def register(self, name: str, index: int, addr: str) -> None:
        raise NotImplementedError

    def deregister(self, name: str, index: int, addr: str) -> None:
        raise NotImplementedError

    def query(self, name: str) -> dict[int, str]:
        self.asked.append((name, self.clock.monotonic()))
        return self.answer(name, self.clock.monotonic())

    def query_all(self) -> dict[str, dict[int, str]]:
        raise NotImplementedError


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def request(index: int = 0, **options: Any) -> ClusterRequest:
    options = {"worker_addr": f"10.0.1.{index}:2", "num_workers": 4, "num_required_ps": 2, **options}
    return ClusterRequest(index=index, **options)


def arriving(name: str, now: float) -> dict[int, str]:
    """A server comes every 7 s, the last index first; the chief comes after 20 s."""
    if name == "worker":
        return {0: "10.0.1.0:2"} if now >= 20 else {2: "10.0.1.2:2"}
    return {index: PS[index] for index in (2, 1, 0)[: int(now // 7)]}


def test_the_chief_waits_for_enough_servers_and_takes_the_first(clock: FakeClock) -> None:
    discovery = Unfolding(clock, arriving)
    cluster, task = get_training_cluster(discovery, request(), clock=clock)
    assert cluster == {
        "chief": ["10.0.1.0:2"],
        "worker": ["0.0.0.0:1", "0.0.0.0:2", "0.0.0.0:3"],
        "ps": [PS[1], PS[2]],
    }
    assert task == {"type": "chief", "index": 0}
    assert discovery.asked == [("ps", 0), ("ps", 5), ("ps", 10), ("ps", 15)]


def test_more_servers_than_needed_are_cut_in_order_of_their_index() -> None:
    discovery = StaticServiceDiscovery({"ps": PS})
    assert get_training_cluster(discovery, request()).cluster["ps"] == PS[:2]


def test_a_worker_waits_for_the_chief_and_stands_in_its_own_place(clock: FakeClock) -> None:
    found = get_training_cluster(Unfolding(clock, arriving), request(2), clock=clock)
    assert found.cluster == {
        "chief": ["10.0.1.0:2"],
        "worker": ["0.0.0.0:1", "10.0.1.2:2", "0.0.0.0:3"],
        "ps": [PS[1], PS[2]],
    }
    assert found.task == {"type": "worker", "index": 1}
    assert clock.monotonic() == 20
    assert json.loads(found.tf_config()) == {"cluster": found.cluster, "task": found.task}


def test_a_chief_alone_needs_no_other_process() -> None:
    cluster, task = get_training_cluster(StaticServiceDiscovery({"ps": []}), request(num_workers=1, num_required_ps=0))
    assert cluster == {"chief": ["10.0.1.0:2"], "worker": [], "ps": []}
    assert task == {"type": "chief", "index": 0}


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError("consul is down"), UnavailableError("busy"), ValueError("no JSON"), KeyError("Port")],
)
def test_a_service_that_fails_temporarily_is_retried(
    clock: FakeClock, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def recovering(name: str, now: float) -> dict[int, str]:
        if now < 60:
            raise error
        return dict(enumerate(PS))

    assert get_training_cluster(Unfolding(clock, recovering), request(), clock=clock).cluster["ps"] == PS[:2]
    assert clock.monotonic() == 60
    assert caplog.messages[0] == f"training cluster: 0 of 2 ps after 0 s, discovery failed: {error!r}"
    assert len(caplog.messages) == 12


def test_without_a_limit_the_wait_has_no_end(clock: FakeClock) -> None:
    discovery = Unfolding(clock, lambda name, now: dict(enumerate(PS)) if now >= 100_000 else {})
    get_training_cluster(discovery, request(), clock=clock)
    assert clock.monotonic() == 100_000


def test_a_limit_ends_the_wait_with_what_was_found(clock: FakeClock) -> None:
    with pytest.raises(DeadlineExceededError, match="found 1 of 2 ps in 600 s"):
        get_training_cluster(
            Unfolding(clock, lambda name, now: {1: PS[1]}), request(), timeout_seconds=600, clock=clock
        )

    def down(name: str, now: float) -> dict[int, str]:
        raise ConnectionRefusedError("consul is down")

    with pytest.raises(
        DeadlineExceededError,
        match=r"found 0 of 1 worker in 0 s, last error: ConnectionRefusedError\('consul is down'\)",
    ):
        get_training_cluster(Unfolding(clock, down), request(1), timeout_seconds=0, clock=clock)


def test_the_failure_handler_decides_whether_to_retry_or_to_abort(clock: FakeClock) -> None:
    seen: list[Incomplete] = []

    class GiveUpError(Exception):
        pass

    def handler(missing: Incomplete) -> None:
        seen.append(missing)
        if len(seen) == 3:
            raise GiveUpError
        clock.sleep(100)

    with pytest.raises(GiveUpError):
        get_training_cluster(
            Unfolding(clock, lambda name, now: {0: PS[0]}), request(), failure_handler=handler, clock=clock
        )
    assert [missing.waited_seconds for missing in seen] == [0, 100, 200]
    assert seen[0] == Incomplete("ps", 1, 2, None, 0)


def test_gauges_show_the_wait(clock: FakeClock) -> None:
    tags = {"model_name": "gauges-show-the-wait", "cluster_type": "stable"}

    def shown() -> tuple[float, float]:
        left, waiting = (
            process_recorder().gauge(f"monolith.containers.{name}", tags) for name in ("num_left_ps", "job_waiting")
        )
        return left, waiting

    seen: list[tuple[float, float]] = []

    def look(missing: Incomplete) -> None:
        seen.append(shown())
        clock.sleep(5)

    conf = request(model_name=tags["model_name"])
    get_training_cluster(Unfolding(clock, arriving), conf, failure_handler=look, clock=clock)
    assert seen == [(2, 1), (2, 1), (1, 1)]
    assert shown() == (0, 0)


def test_without_a_model_name_there_are_no_gauges(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "emit_store", lambda *args: pytest.fail("nobody asked for gauges"))
    get_training_cluster(Unfolding(clock, arriving), request(), clock=clock)


def test_the_list_of_servers_is_written_and_read_back(tmp_path: Path) -> None:
    file_name = get_ps_cluster_file_name(str(tmp_path), "uuid")
    assert file_name == f"{tmp_path}/ps_cluster_dir/uuid"
    assert get_ps_cluster_file_name("/m/") == get_ps_cluster_file_name("/m", "") == "/m/ps_cluster_dir/ps_info"
    save_ps_cluster_to_file(file_name, PS)
    assert Path(file_name).read_text() == ",".join(PS)
    assert fetch_ps_cluster_from_file(file_name) == PS
    assert [path.name for path in (tmp_path / "ps_cluster_dir").iterdir()] == ["uuid"]


def test_a_list_that_does_not_come_is_empty_after_the_time_out(tmp_path: Path, clock: FakeClock) -> None:
    assert fetch_ps_cluster_from_file(str(tmp_path / "none"), clock=clock) == []
    assert clock.monotonic() == 1800
    assert fetch_ps_cluster_from_file(str(tmp_path / "none"), 0, clock=clock) == []
    assert clock.monotonic() == 1800


@pytest.mark.parametrize("left_by_a_former_run", [None, "", "a:1", "a:1,b:1,c:1"])
def test_a_list_is_read_as_soon_as_it_exists_with_the_right_length(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, left_by_a_former_run: str | None
) -> None:
    file_name = str(tmp_path / "list")
    if left_by_a_former_run is not None:
        text_files.write_text(file_name, left_by_a_former_run)
    sleep = clock.sleep

    def write_meanwhile(seconds: float) -> None:
        sleep(seconds)
        if clock.monotonic() >= 32:
            save_ps_cluster_to_file(file_name, PS[:2])

    monkeypatch.setattr(clock, "sleep", write_meanwhile)
    assert fetch_ps_cluster_from_file(file_name, num_required=2, clock=clock) == PS[:2]
    assert clock.monotonic() == 35


def test_a_restarted_chief_keeps_its_servers(tmp_path: Path) -> None:
    redundant: dict[str, Any] = {"num_redundant_ps": 1, "model_dir": str(tmp_path), "uuid": "run"}
    first = StaticServiceDiscovery({"ps": PS, "worker": ["10.0.1.0:2"]})
    assert get_training_cluster(first, request(**redundant)).cluster["ps"] == PS[:2]
    later = StaticServiceDiscovery({"ps": PS[::-1], "worker": ["10.0.1.0:2"]})
    assert get_training_cluster(later, request(**redundant)).cluster["ps"] == PS[:2]
    assert get_training_cluster(later, request(3, **redundant)).cluster["ps"] == PS[:2]
    bigger = request(**redundant, num_required_ps=3)
    assert get_training_cluster(later, bigger).cluster["ps"] == PS[::-1]
    assert fetch_ps_cluster_from_file(get_ps_cluster_file_name(str(tmp_path), "run"), 0) == PS[::-1]


def test_a_worker_without_the_list_reports_what_is_missing(tmp_path: Path, clock: FakeClock) -> None:
    discovery = StaticServiceDiscovery({"ps": PS, "worker": ["10.0.1.0:2"]})
    with pytest.raises(FailedPreconditionError, match="2 parameter servers are required, got 0: none"):
        get_training_cluster(discovery, request(1, num_redundant_ps=1, model_dir=str(tmp_path)), clock=clock)
    assert clock.monotonic() == 1800


def test_a_real_service_gives_the_same_cluster_to_all(tmp_path: Path) -> None:
    discovery = HostServiceDiscovery(str(tmp_path))
    for index, addr in enumerate(PS[:2]):
        discovery.register("ps", index, addr)
    discovery.register("worker", 0, "10.0.1.0:2")
    views = [get_training_cluster(discovery, request(index)) for index in range(4)]
    assert {tuple(view.cluster["ps"]) for view in views} == {tuple(PS[:2])}
    assert {tuple(view.cluster["chief"]) for view in views} == {("10.0.1.0:2",)}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"index": -1}, "index must be >= 0"),
        ({"index": 4}, "index must be below num_workers, got 4 of 4"),
        ({"num_required_ps": -1}, "num_required_ps must be >= 0"),
        ({"num_redundant_ps": 1}, "model_dir must be set"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(options: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        request(**options)


def test_processes_talk_to_servers_and_the_chief_only() -> None:
    cluster = {"chief": ["c:1"], "worker": ["0.0.0.0:1", "w:1"], "ps": ["p:1", "p:2"]}
    worker = generate_session_config((cluster, {"type": "worker", "index": 1}))
    assert worker.device_filters == ("/job:ps", "/job:chief", "/job:worker/task:1")
    assert worker.cluster == cluster
    talks = {(job, index) for job in cluster for index in range(3) if worker.may_talk_to(job, index)}
    assert talks == {("chief", 0), ("ps", 0), ("ps", 1), ("worker", 1)}
    chief = generate_session_config((cluster, {"type": "chief", "index": 0}))
    assert chief.device_filters == ("/job:ps", "/job:chief")
    assert not chief.may_talk_to("worker", 0)


def test_without_a_cluster_there_are_no_peers() -> None:
    alone = generate_session_config()
    assert (alone.cluster, alone.task, alone.device_filters) == ({}, {}, ())
    assert not alone.may_talk_to("ps", 0)


def test_a_run_without_a_name_keeps_its_servers_in_ps_info(tmp_path: Path, clock: FakeClock) -> None:
    wanted = request(num_redundant_ps=1, model_dir=str(tmp_path))
    get_training_cluster(StaticServiceDiscovery({"ps": PS}), wanted, clock=clock)
    assert (tmp_path / "ps_cluster_dir" / "ps_info").read_text() == ",".join(PS[:2])
