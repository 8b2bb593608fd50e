"""Whole jobs lose nothing that they do not say, whichever of their processes is killed, stopped or cut off.

``scripts/crash-test --cluster --kills 200`` does more of the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from programs import Programs
from system.crash import CLUSTER_SCENARIOS
from system.crash.cluster_task import ClusterCountingTask, ClusterInput

QUICK = [("all go back", 2)]
"""Scenario and faults of the quick tier: a kill and a pause."""
FULL = [(each.name, 5) for each in CLUSTER_SCENARIOS]


@pytest.mark.parametrize(
    ("scenario", "faults"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in FULL)]
)
def test_a_job_counts_right_whatever_befalls_its_processes(
    project_root: Path, quick_folder: Path, scenario: str, faults: int, programs: Programs
) -> None:
    arguments = ["--cluster", "--kills", str(faults), "--seed", "7", "--json"]
    arguments += ["--scenario", scenario, "--directory", str(quick_folder)]
    done = programs.run(Path("scripts/crash-test"), *arguments, folder=project_root)
    assert done.returncode == 0, done.stdout + done.stderr
    ((trial,),) = [row["trials"] for row in json.loads(done.stdout)["scenarios"]]
    assert trial["problems"] == []
    assert len(trial["faults"]) == faults
    assert all(fault["recovery_seconds"] > 0 for fault in trial["faults"])


@pytest.fixture
def counted() -> ClusterCountingTask:
    """A task as it is after an undisturbed run."""
    given = ClusterInput(seed=3, num_workers=2, num_batches=6, batch_size=4, num_ids=20)
    params = ClusterCountingTask.params()
    params.counted = {"seed": 3, "num_workers": 2, "num_batches": 6, "batch_size": 4, "num_ids": 20}
    task = ClusterCountingTask(params)
    task.make_model()
    for worker in range(given.num_workers):
        for number in range(given.num_batches):
            count(task, given.ids(worker, number), given.marks(worker))
    return task


def count(task: ClusterCountingTask, ids: torch.Tensor, marks: list[int], times: float = 1.0) -> None:
    rows = torch.tensor(marks).repeat(len(ids), 1)
    features = {"id": ids, "mark": rows}
    (-times * task.emb(features).concat().sum()).backward()
    task.emb.step()
    with torch.no_grad():
        task.total.weight += times * len(ids)


def test_an_undisturbed_count_is_right(counted: ClusterCountingTask) -> None:
    assert counted.problems({}, {}, num_ps=2) == []


@pytest.mark.parametrize("times", [1.0, -1.0], ids=["counted-twice", "lost"])
def test_a_batch_too_many_or_too_few_shows(counted: ClusterCountingTask, times: float) -> None:
    given = ClusterInput(**counted.p.counted)
    count(counted, given.ids(1, 0), given.marks(1), times)
    found = counted.problems({}, {}, num_ps=2)
    assert any(line.startswith("worker 1: rows miss") for line in found)
    assert any(line.startswith("the dense weight misses") for line in found)
    assert any(line.startswith("id ") for line in found)


def test_exactly_what_the_job_reports_as_lost_must_be_missing(counted: ClusterCountingTask) -> None:
    assert counted.problems({(1, 0): 1}, {}, num_ps=2) != []
    given = ClusterInput(**counted.p.counted)
    count(counted, given.ids(1, 0), given.marks(1), -1.0)
    assert counted.problems({(1, 0): 1, (1, 1): 1}, {(1, 0): 1, (1, 1): 1}, num_ps=2) == []
    assert counted.problems({(1, 0): 2, (1, 1): 2}, {(1, 0): 1}, num_ps=2) != []
