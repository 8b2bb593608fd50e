"""Workers that count on parameter servers lose nothing and count nothing twice, however often they are killed.

``scripts/crash-test --servers 3 --kills 100`` does more of the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from monolith.tables import BatchStamp, LocalStore, Update
from programs import Programs
from system.crash import CONFIGS, CountingJob
from system.crash.processes import BatchLimit


@pytest.mark.slow
def test_every_row_is_minus_its_count_after_workers_were_killed_paused_and_replaced(
    project_root: Path, programs: Programs
) -> None:
    arguments = ["--servers", "3", "--kills", "10", "--seed", "7", "--json"]
    done = programs.run(Path("scripts/crash-test"), *arguments, folder=project_root)
    assert done.returncode == 0, done.stdout + done.stderr
    same, others = json.loads(done.stdout)["trials"]
    assert (same["deterministic"], others["deterministic"]) == (True, False)
    for trial in (same, others):
        assert trial["problems"] == []
        assert (trial["kill"], trial["pause"], trial["replace"]) == (3, 1, 1)
        assert trial["refused"] == 1, "the process that was replaced, and nobody else"
    assert same["deviation"] == 0
    assert others["deviation"] <= others["bound"]


@pytest.fixture
def job() -> CountingJob:
    return CountingJob(seed=3, num_workers=2, num_batches=4, batch_size=16, num_ids=20)


def counted(job: CountingJob) -> LocalStore:
    store, limit = LocalStore(CONFIGS), BatchLimit()
    limit.set(job.num_batches)
    for worker in range(job.num_workers):
        assert job.work(store, worker, life=0, limit=limit, tell=lambda _: None) == {"batches": job.num_batches}
    return store


def test_the_count_of_undisturbed_workers_is_right(job: CountingJob) -> None:
    store = counted(job)
    assert job.miscounts(store) == []
    assert job.deviation(store) == 0


@pytest.mark.parametrize("change", [1.0, -1.0], ids=["counted-twice", "lost"])
def test_one_occurrence_too_many_or_too_few_shows(job: CountingJob, change: float) -> None:
    store = counted(job)
    session = store.join(9)
    plan = session.plan(torch.tensor([5]), torch.tensor([0, 1]), stamp=BatchStamp(worker=9, seq=0))
    rule = Update(step=0, learning_rates=torch.ones(1), times=0, previous=-1)
    session.apply([(plan, torch.tensor([change]))], rule).result()
    wrong = job.miscounts(store)
    assert wrong[0].startswith("id 5: ")
    assert job.deviation(store) == 1


def test_a_worker_that_did_not_come_to_its_end_shows(job: CountingJob) -> None:
    store, limit = LocalStore(CONFIGS), BatchLimit()
    limit.set(job.num_batches)
    job.work(store, 0, life=0, limit=limit, tell=lambda _: None)
    assert any("the last batches applied should be {0: 3, 1: 3}" in line for line in job.miscounts(store))


def test_a_worker_started_again_reads_the_same_batches_only_where_input_is_deterministic(job: CountingJob) -> None:
    assert torch.equal(job.batch(0, 1, life=0), job.batch(0, 1, life=5))
    assert not torch.equal(job.batch(0, 1, life=0), job.batch(1, 1, life=0))
    other = CountingJob(seed=3, deterministic=False)
    assert not torch.equal(other.batch(0, 1, life=0), other.batch(0, 1, life=5))
