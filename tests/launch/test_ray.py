"""The Ray launcher, with functions that stand for roles: who is started, who ends, what is seen of it."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from discovery_backends import eventually
from monolith.cluster.discovery.ray_actor import start_registry
from monolith.cluster.runtimes.ray import NAMESPACE, load_ray
from monolith.launch import LaunchPlan, RayLauncher, Resources, RestartConfig, ray_places
from monolith.launch.ray_places import RayPlaces
from monolith.launch.supervision import ShutdownConfig
from monolith.train import RunnerConfig
from ray_nodes import RayCluster

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.slow]

SOON = RestartConfig(first_pause_seconds=0.01, longest_pause_seconds=0.02)


class Job:
    """A job of stand-ins, described by the words of its roles."""

    def __init__(self, folder: Path, roles: dict[str, str], **plan: Any) -> None:
        self.folder = folder
        self.name = f"job-{uuid.uuid4().hex}"
        for name, words in roles.items():
            (folder / name).write_text(words, encoding="utf-8")
        num_ps = sum(name.startswith("ps") for name in roles)
        options = RunnerConfig(num_ps=num_ps, num_workers=len(roles) - num_ps, model_dir="/nowhere", uuid=self.name)
        given = {"restarts": SOON, "environment": {"GIVEN": "variable"}, **plan}
        self.plan = LaunchPlan(task=str(folder), options=options, **given)
        self.log = io.StringIO()
        patience = ShutdownConfig(server_seconds=0.0, kill_seconds=5.0)
        entry = "launch.ray_stand_in:main"
        self.launcher = RayLauncher(self.plan, entry=entry, file=self.log, patience=patience)

    @property
    def events(self) -> list[str]:
        file = self.folder / "events"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def starts(self, role: str) -> list[dict[str, Any]]:
        """What each life of a role said of itself."""
        head = f"{role} starts "
        return [json.loads(event.removeprefix(head)) for event in self.events if event.startswith(head)]

    def run_until(self, *parts: str, then: Any) -> int:
        """Runs, and does something when all these have happened."""

        def watch() -> None:
            eventually(lambda: all(any(part in event for event in self.events) for part in parts), str(parts))
            then()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            return self.launcher.run()
        finally:
            watcher.join()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def names_on_ray() -> set[str]:
    listed = load_ray().util.list_named_actors(all_namespaces=True)
    return {each["name"] for each in listed if each["namespace"] == NAMESPACE}


def test_roles_find_each_other_and_are_started_again_until_all_are_done(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "again die peers", "worker-1": "peers"})
    assert job.launcher.run() == 0
    assert job.launcher.restarts == 2
    assert [life["word"] for life in job.starts("worker 0")] == ["again", "die", "peers"]
    assert len({life["pid"] for life in job.starts("worker 0")}) == 3, "every life is a process of its own"
    assert "ps 0 is told SIGTERM" in job.events, "the last worker is gone"
    assert "worker 0 requested a restart (exit code 75); it is started again" in job.log.getvalue()
    assert "worker 0 died, or its node has; it is started again" in job.log.getvalue()
    assert {each for each in names_on_ray() if each.startswith(job.name)} == set(), "nothing is left on the cluster"


def test_a_role_receives_the_same_settings_as_a_local_process(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "done", "worker-0": "done"})
    assert job.launcher.run() == 0
    (life,) = job.starts("worker 0")
    assert (life["variable"], life["folder"]) == ("variable", str(Path.cwd()))
    assert "worker 0 listens at 127.0.0.1, knows 44" in job.events, "an address of the node, and a secret"
    assert job.launcher.result == {"index": 0}, "what the chief said"
    assert job.launcher.global_step == 10
    assert "10/100 steps" in job.log.getvalue()


def test_ctrl_c_lets_workers_save_and_end_also_when_the_actor_of_the_job_was_lost(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "stay"})

    def lose_and_interrupt() -> None:
        ray = load_ray()
        ray.kill(ray.get_actor(job.name, namespace=NAMESPACE), no_restart=False)
        interrupt()

    assert job.run_until("ps 0 stays", "worker 0 stays", then=lose_and_interrupt) == 130
    assert "worker 0 is told SIGINT" in job.events
    assert "ps 0 is told SIGTERM" in job.events
    assert "got SIGINT" in job.log.getvalue()


def test_a_second_ctrl_c_kills_processes_that_ignore_signals(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "deaf", "worker-0": "deaf"})

    def interrupt_twice() -> None:
        interrupt()
        eventually(lambda: "worker 0 is told SIGINT" in job.events, "the worker is told")
        interrupt()

    assert job.run_until("ps 0 stays", "worker 0 stays", then=interrupt_twice) == 130
    assert "killing all processes" in job.log.getvalue()


def test_an_error_of_the_task_ends_the_job_with_a_failure(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "raise", "worker-1": "stay"})
    assert job.launcher.run() == 1
    assert len(job.starts("worker 0")) == 1, "it would come again"
    assert "worker 0 failed (exit code 1): the job ends" in job.log.getvalue()


def test_the_exit_code_of_a_role_that_fails_is_that_of_the_job(tmp_path: Path) -> None:
    assert Job(tmp_path, {"ps-0": "stay", "worker-0": "fail"}).launcher.run() == 3


def test_a_role_that_dies_too_often_ends_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, {"ps-0": "stay", "worker-0": "die"}, restarts=RestartConfig(limit=1))
    assert job.launcher.run() == 128 + signal.SIGKILL
    assert len(job.starts("worker 0")) == 2
    assert "worker 0 died, or its node has, 2 times in a row" in job.log.getvalue()


def test_servers_are_spread_over_the_nodes_and_get_the_planned_resources() -> None:
    ray = load_ray()
    options = RunnerConfig(num_ps=2, num_workers=2, model_dir="/nowhere")
    asked = {"ps": Resources(cpus=1.5, memory_bytes=2**20), "worker": Resources(cpus=0.5, memory_bytes=2**21)}
    places = RayPlaces(ray, LaunchPlan(task="t", options=options, resources=asked))  # type: ignore[arg-type]
    try:
        assert places.wait(print, lambda: True)
        table = ray.util.placement_group_table(places._group)
        assert table["bundles_to_node_id"][0] != table["bundles_to_node_id"][1]
        assert table["bundles"] == {
            0: {"CPU": 1.5, "memory": 2**20},
            1: {"CPU": 1.5, "memory": 2**20},
            2: {"CPU": 0.5, "memory": 2**21},
            3: {"CPU": 0.5, "memory": 2**21},
        }
    finally:
        places.close()


def test_a_job_that_does_not_fit_reports_the_missing_resources_and_can_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_places, "_TELL_SECONDS", 0.1)
    too_much = {"ps": Resources(cpus=1000.0), "worker": Resources(cpus=0.5)}
    job = Job(tmp_path, {"ps-0": "done", "worker-0": "done"}, resources=too_much)

    def interrupt_when_told() -> None:
        eventually(lambda: "the job needs 1000.5 processors" in job.log.getvalue(), "it says so")
        interrupt()

    assert job.run_until(then=interrupt_when_told) == 130
    assert "the cluster has 8 and" in job.log.getvalue()
    assert job.events == [], "nothing was started"


def test_a_job_that_cannot_replace_a_lost_place_reports_what_it_needs_and_can_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_cluster: RayCluster
) -> None:
    monkeypatch.setattr(ray_places, "_TELL_SECONDS", 0.1)
    node = ray_cluster.add_node(20)
    job = Job(
        tmp_path, {"ps-0": "stay", "worker-0": "stay"}, resources={"ps": Resources(), "worker": Resources(cpus=20.0)}
    )

    def lose_the_node() -> None:
        said = "waiting for places: the job needs 21 processors"
        before = job.log.getvalue().count(said)  # on a busy machine, at the start
        ray_cluster.remove_node(node)
        eventually(lambda: job.log.getvalue().count(said) > before, "it says so")
        interrupt()
        eventually(lambda: "stopping: workers save and end" in job.log.getvalue(), "it waits for the worker")
        interrupt()

    assert job.run_until("worker 0 stays", then=lose_the_node) == 130


def test_a_job_of_a_name_that_runs_already_is_refused(tmp_path: Path, ray_cluster: RayCluster) -> None:
    job = Job(tmp_path, {"ps-0": "done", "worker-0": "done"})
    other = start_registry(job.name)
    try:
        with pytest.raises(ValueError, match=job.name):
            job.launcher.run()
    finally:
        load_ray().kill(other)
