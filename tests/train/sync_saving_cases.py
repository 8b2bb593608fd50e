"""Cases of saving and of control files that run on all ranks; `test_sync_saving` asks for what they return."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from monolith import collective
from monolith.checkpoint import writing
from monolith.errors import ResourceExhaustedError
from monolith.hook import Hook, StepContext
from monolith.train import (
    DistributedCpuTrainingConfig,
    Estimator,
    MarkerFilesConfig,
    RunnerConfig,
    SavingConfig,
    Trainer,
    TrainerConfig,
)
from monolith.train.config.job_config import JobProgramConfig, SyncConfig
from monolith.train.roles.sync_runner import distributed_sync_train
from train.sync_cases import RowsTask, Thirteen


def trained(folder: Path, saving: SavingConfig, *, hooks: tuple[Hook, ...] = (), steps: int | None = None) -> Trainer:
    """By a config of one's own."""
    part: dict[str, Any] = {"worker_index": collective.rank(), "num_workers": collective.size(), "sync": SyncConfig()}
    config = TrainerConfig(model_dir=str(folder / "model"), saving=saving, deterministic=True, **part)
    trainer = Trainer(Thirteen(), config, hooks=hooks)
    trainer.train(max_steps=steps)
    trainer.release_state()
    return trainer


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("*.manifest"))


class Put(Hook):
    """Rank 0 puts a file into the model directory at a step; before the hooks that look for it."""

    def __init__(self, path: Path, step: int, text: str = "") -> None:
        self.path, self.step, self.text = path, step, text

    def before_run(self, context: StepContext) -> None:
        if context.global_step + 1 == self.step and collective.rank() == 0:
            self.path.write_text(self.text)


def case_files(folder: Path) -> Any:
    """A save at step 2, and a stop at step 4, by files."""
    model = folder / "model"
    files = MarkerFilesConfig(dump_look_steps=2, limit_look_steps=None)
    put = (Put(model / "dump_2", 2), Put(model / "stop_4", 4))
    trainer = trained(folder, SavingConfig(marker_files=files), hooks=put)
    return trainer.global_step


def case_limit(folder: Path) -> Any:
    """The data has come to a time at step 2 of rank 0."""
    files = MarkerFilesConfig(dump_look_steps=None, limit_look_steps=1)
    limit = 1_700_000_000 + collective.size()  # the time of rank 0's second batch
    put = (Put(folder / "model" / "limit_req_time", 1, str(limit)),)
    trainer = trained(folder, SavingConfig(marker_files=files), hooks=put)
    return trainer.global_step


def case_online(folder: Path) -> Any:
    """Checkpoints without tables from the step on at which ONLINE is there."""
    files = MarkerFilesConfig(dump_look_steps=None, limit_look_steps=None, online_look_steps=1)
    put = (Put(folder / "model" / "ONLINE", 3),)
    trained(folder, SavingConfig(marker_files=files, dense_every_steps=1, max_to_keep=None), hooks=put, steps=4)


def case_background(folder: Path) -> Any:
    """Every step is saved beside the next ones, rows removed after each."""
    saving = SavingConfig(every_steps=1, background=True, evict_after=True, max_to_keep=3)
    trainer = trained(folder, saving)
    return trainer.global_step


class FailingDisk(Hook):
    """The next save of one rank finds the disk full, once."""

    def __init__(self, rank: int, step: int) -> None:
        self.rank, self.step = rank, step
        self.failures = 0

    def after_run(self, context: StepContext) -> None:
        if context.global_step != self.step or collective.rank() != self.rank:
            return
        if self.rank == 0:
            write = writing.write_tensors  # type: ignore[attr-defined]

            def full(*arguments: Any, **options: Any) -> Any:
                writing.write_tensors = write  # type: ignore[attr-defined]
                self.failures += 1
                raise ResourceExhaustedError("file 'tensors': no space left")

            writing.write_tensors = full  # type: ignore[attr-defined]
            return
        store = context.session.state.stores["emb"]
        cuts = store._cuts  # type: ignore[attr-defined]
        own = cuts._write_own

        def full_here(*arguments: Any) -> Any:
            cuts._write_own = own
            self.failures += 1
            raise ResourceExhaustedError("file 'bucket': no space left")

        cuts._write_own = full_here


def case_disk(folder: Path) -> Any:
    """What fails on one rank fails on all, and is made once more."""
    disks = [FailingDisk(0, 2), FailingDisk(collective.size() - 1, 3)]
    trainer = trained(folder, SavingConfig(every_steps=1, max_to_keep=None), hooks=tuple(disks), steps=5)
    return [trainer.global_step, [each.failures for each in disks]]


def case_estimator(folder: Path) -> Any:
    config = RunnerConfig(model_dir=str(folder / "model"), enable_sync_training=True, embedding_prefetch_capacity=1)
    estimator = Estimator(RowsTask, config)
    step = estimator.train(max_steps=3).global_step
    return [step, sorted(estimator.evaluate(steps=1))]


def case_reports(folder: Path) -> Any:
    """Only rank 0 writes summaries; its intervals are those of the environment."""
    config = DistributedCpuTrainingConfig(model_dir=str(folder / "model"))
    trainer = distributed_sync_train(config, RowsTask.params(), settings=JobProgramConfig(max_steps=4))
    reporting = trainer.config.reporting
    return [reporting.summary_every_steps, reporting.log_every_steps, reporting.tensorboard, len(trainer.history)]


class Kill(Hook):
    """The last rank is killed inside a save."""

    def after_run(self, context: StepContext) -> None:
        if context.global_step != 4 or collective.rank() != collective.size() - 1:
            return
        store = context.session.state.stores["emb"]

        def end(*_: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

        store._cuts._write_own = end  # type: ignore[attr-defined]


def case_killed(folder: Path) -> Any:
    hooks = (Kill(),) if not (folder / "again").exists() else ()
    trainer = trained(folder, SavingConfig(every_steps=2, max_to_keep=None), hooks=hooks)
    return trainer.global_step
