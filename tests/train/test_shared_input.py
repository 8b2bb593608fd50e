"""Every example of a file is trained once, however many processes train, and whoever resumes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from monolith.errors import InvalidArgumentError
from monolith.train import Trainer, TrainerConfig
from programs import Programs
from train.job_threads import ThreadJob
from train.shared_input_cases import (
    BATCH,
    FILE,
    ROWS,
    ByPlace,
    Clicks,
    FromGenerator,
    OwnDataset,
    TwoBatches,
    Whole,
    outcome,
    write_clicks,
)
from train.sync_ranks import results_of, run_ranks

ONCE = {1.0: ROWS}
STEPS = -(-ROWS // BATCH)
AUC_TOLERANCE = 0.02
"""Between a run of one process and one of several, whose batches are others."""


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    write_clicks(path)
    return path


@pytest.fixture(autouse=True)
def _file(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE, str(clicks))


@pytest.fixture(scope="module")
def ranks(programs: Programs, clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    cases = ["trained", "by_hand", "refused", "begun"]
    run_ranks(programs, "shared_input_cases", folder / "two", cases, size=2, SHARED_CSV=str(clicks))
    return folder


@pytest.mark.slow
def test_one_process_a_job_and_ranks_train_the_same_examples(tmp_path: Path, ranks: Path) -> None:
    Trainer(Clicks(), TrainerConfig(model_dir=str(tmp_path / "alone"))).train()
    ThreadJob(tmp_path / "job", num_ps=2, num_workers=2, params=Clicks.params).run()
    in_step = results_of(ranks / "two", "trained")
    alone, job = outcome(str(tmp_path / "alone")), outcome(str(tmp_path / "job"))
    together = outcome(str(ranks / "two" / "trained" / "model"))
    assert [each["trained"] for each in (alone, job, together)] == [ONCE] * 3
    assert alone["global_step"] == STEPS
    assert job["global_step"] in {STEPS, STEPS + 1}  # each worker has a last batch of its own
    assert in_step == [together["global_step"]] * 2
    assert together["global_step"] in {STEPS // 2, STEPS // 2 + 1}  # a step takes a batch of each rank
    assert alone["auc"] > 0.95
    assert [job["auc"], together["auc"]] == pytest.approx([alone["auc"]] * 2, abs=AUC_TOLERANCE)


def test_jobs_of_other_numbers_of_workers_resume_exactly(tmp_path: Path) -> None:
    """Of two workers, three, one, and one process; what each of them begins the next one resumes."""
    model = tmp_path / "model"

    def train(num_workers: int, max_steps: int | None) -> None:
        settings = {} if max_steps is None else {"max_steps": max_steps}
        ThreadJob(model, num_workers=num_workers, params=Clicks.params, settings=settings).run()

    train(2, 8)
    train(3, 16)
    train(1, 22)
    Trainer(Clicks(), TrainerConfig(model_dir=str(model))).train(max_steps=26)
    train(1, None)
    found = outcome(str(model))
    assert found["trained"] == ONCE
    assert found["global_step"] == STEPS + 1


@pytest.mark.slow
def test_a_job_resumes_what_one_process_began(tmp_path: Path) -> None:
    Trainer(Clicks(), TrainerConfig(model_dir=str(tmp_path))).train(max_steps=9)
    ThreadJob(tmp_path, num_workers=2, params=Clicks.params).run()
    assert outcome(str(tmp_path))["trained"] == ONCE


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_other_numbers_of_ranks_resume_exactly(programs: Programs, ranks: Path, clicks: Path, size: int) -> None:
    results_of(ranks / "two", "begun")
    folder = ranks / f"resumed-{size}"
    shutil.copytree(ranks / "begun", folder / "begun")
    run_ranks(programs, "shared_input_cases", folder / "run", ["ended"], size=size, SHARED_CSV=str(clicks))
    steps = results_of(folder / "run", "ended", size)
    found = outcome(str(folder / "begun"))
    assert found["trained"] == ONCE
    assert steps == [found["global_step"]] * size
    if size == 3:
        told = (folder / "run" / "output-2.txt").read_text()
        assert told.count("input: worker 2 of 3 has nothing to read: the run began with 2, ") == 1


def test_a_share_that_the_task_chooses_is_not_shared_again(ranks: Path) -> None:
    results_of(ranks / "two", "by_hand")
    assert outcome(str(ranks / "two" / "by_hand" / "model"))["trained"] == ONCE


def test_a_generator_is_refused_with_what_to_write(ranks: Path) -> None:
    for told in results_of(ranks / "two", "refused"):
        assert "input_fn returns a generator, which 2 workers cannot share" in told
        assert "index, count = self.ctx.shares" in told
    for task in (FromGenerator(), OwnDataset()):
        with pytest.raises(InvalidArgumentError, match=r"2 workers.*each would train on all of it"):
            Trainer(task, TrainerConfig(worker_index=1, num_workers=2)).train()
        assert Trainer(type(task)()).train(steps=2).global_step == 2  # one process may


def test_a_worker_without_input_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    assert Trainer(TwoBatches(), TrainerConfig(worker_index=2, num_workers=3)).train().global_step == 0
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warned) == 1
    assert warned[0].startswith("input: worker 2 of 3 has nothing to read: ")
    assert "start fewer workers" in warned[0]


def test_what_each_worker_is_to_train_is_read_as_it_is() -> None:
    for task in (Whole(), ByPlace()):
        trained = [Trainer(task, TrainerConfig(worker_index=index, num_workers=2)).train() for index in range(2)]
        assert [each.global_step for each in trained] == [2, 2]
