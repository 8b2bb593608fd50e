"""Which files a worker reads, as its task asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from monolith.checkpoint import Saver, TrainState
from monolith.data import Dataset, FileQueue, FileSet, LocalFileQueue, QueuedFiles
from monolith.data.sources.file_dataset import FileDataset
from monolith.tables.batch import BatchStamp
from monolith.train import InputConfig, Spec, Task, Trainer, TrainerConfig
from monolith.train.context import TaskContext
from monolith.train.input.jobs import LocalJob
from monolith.train.input.shares import InputShares


class _Names:
    """A file that has its own name, once."""

    def __init__(self, path: str, place: Any) -> None:
        self.path, self.place = path, place or 0

    def __next__(self) -> str:
        if self.place:
            raise StopIteration
        self.place = 1
        return Path(self.path).name

    def close(self) -> None:
        pass


class Names(FileDataset[str]):
    """The names of files, one by one."""

    def open_file(self, path: str, place: Any) -> _Names:
        return _Names(path, place)


@pytest.fixture
def days(tmp_path: Path) -> str:
    folder = tmp_path / "days"
    folder.mkdir()
    for number in range(6):
        (folder / f"day-{number}").touch()
    return str(folder / "day-*")


class Reader(Task):
    """Trains on one batch for each file, and keeps their names."""

    def __init__(self, days: str, stop_at: str | None = None) -> None:
        super().__init__()
        self.days, self.stop_at = days, stop_at
        self.read: list[str] = []

    def build(self) -> None:
        self.linear = nn.Linear(1, 1)

    def input_fn(self, mode: str) -> Dataset[Any]:
        return Names(self.ctx.files(self.days))

    def model_fn(self, features: str, mode: str) -> Spec:
        self.read.append(features)
        if mode == "train" and features == self.stop_at:
            raise ZeroDivisionError
        loss = self.linear(torch.ones(1, 1)).sum()
        return Spec(loss, predictions=loss.detach(), label=None)


def test_every_worker_has_a_share_and_together_they_have_all(days: str) -> None:
    shares = [InputShares(worker=worker, num_workers=4).files(days) for worker in range(4)]
    assert all(isinstance(each, FileSet) for each in shares)
    read = [list(Names(each).read()) for each in shares]
    assert read == [["day-0", "day-4"], ["day-1", "day-5"], ["day-2"], ["day-3"]]


def test_a_task_without_a_runner_reads_all(days: str) -> None:
    assert list(Names(TaskContext().files(days)).read()) == [f"day-{number}" for number in range(6)]


def test_files_of_a_queue_are_those_of_the_worker(days: str) -> None:
    queue = LocalFileQueue(days, num_workers=2)

    class Queues:
        def file_queue(self, paths: Any, *, name: str = "files", **options: Any) -> FileQueue:
            assert (paths, name, options) == (days, "more", {"seed": 3, "storage_options": None})
            return queue

    files = InputShares(worker=1, num_workers=2, queues=Queues()).files(days, seed=3, name="more")
    assert isinstance(files, QueuedFiles)
    assert len(list(Names(files).read())) == 6
    assert queue.take(1, 5) is not None


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_run_resumes_with_the_files_that_it_had_not_read(days: str, tmp_path: Path, dynamic: bool) -> None:
    config = TrainerConfig(model_dir=str(tmp_path / "model"), input=InputConfig(dynamic_sharding=dynamic))
    first = Reader(days, stop_at="day-3")
    with pytest.raises(ZeroDivisionError):
        Trainer(first, config).train()
    second = Reader(days)
    assert Trainer(second, config).train().global_step == 6
    assert first.read == ["day-0", "day-1", "day-2", "day-3"]
    assert second.read == ["day-3", "day-4", "day-5"]


def test_an_evaluation_takes_no_files_from_training(days: str, tmp_path: Path) -> None:
    config = TrainerConfig(model_dir=str(tmp_path / "model"), input=InputConfig(dynamic_sharding=True))
    task = Reader(days)
    trainer = Trainer(task, config)
    trainer.train()
    for _ in range(2):
        task.read.clear()
        trainer.evaluate()
        assert len(task.read) == 6


def _job_of_three(days: str, *, with_queue: bool) -> LocalJob:
    """As three workers of a job left it: each has taken a file, and the second has finished."""
    applied = {0: 0, 1: 0, 2: 0}
    job = LocalJob(num_workers=3, applied=lambda: applied)
    if with_queue:
        queue = job.file_queue(days)
        for worker in range(3):
            queue.take(worker, 0)
        job.finish(1)
    return job


def _save(job: LocalJob, days: str, folder: Path) -> None:
    """A checkpoint of a job of three workers that have trained one batch each."""
    task = Reader(days)
    task.build()
    optimizer = torch.optim.Adam(task.linear.parameters())
    state = TrainState(model=task.make_model(), optimizers={"dense": optimizer}, extra={"job": job})
    for worker in range(3):
        reading = Names(QueuedFiles(job.file_queue(days), worker=worker)).read()
        next(reading)
        state.count_step(BatchStamp(worker=worker, seq=0, position=reading.position))
    with Saver(str(folder)) as saver:
        saver.save(state, background=False)


def test_a_run_of_three_workers_resumes_in_one_process(days: str, tmp_path: Path) -> None:
    """All files are read once: those of nobody, and the rest of workers that are not there any more."""
    _save(_job_of_three(days, with_queue=True), days, tmp_path / "model")
    config = TrainerConfig(model_dir=str(tmp_path / "model"), input=InputConfig(dynamic_sharding=True))
    task = Reader(days)
    assert Trainer(task, config).train().global_step == 6
    assert sorted(task.read) == ["day-3", "day-4", "day-5"]


def test_one_process_trains_the_fixed_shares_of_three_workers_one_after_another(days: str, tmp_path: Path) -> None:
    state = TrainState(extra={"job": _job_of_three(days, with_queue=False)})
    with Saver(str(tmp_path / "model")) as saver:
        saver.save(state, background=False)
    alone = LocalJob(applied=dict)
    with Saver(str(tmp_path / "model")) as saver:
        saver.restore(TrainState(extra={"job": alone}))
    assert alone.num_shares == 3
    found = [alone.adopt_worker()]
    for number in (1, 2):
        alone.finish(number)
        found.append(alone.adopt_worker())
    assert found == [1, 2, None]
    alone.reset()
    assert alone.num_shares == 1
