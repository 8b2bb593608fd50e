"""Cases about checkpoints of ranks, and options of ranks; `test_rank_checkpoints` asks for what they return."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import torch

import monolith as ml
from monolith import cli, collective, environment
from monolith.checkpoint import Manifest, tensor_file, writing
from monolith.checkpoint.model_dir_lock import GenerationClaim
from monolith.data import JsonLinesDataset
from monolith.errors import DataLossError, OpError, ResourceExhaustedError
from monolith.files.storage import open_storage
from monolith.hook import Hook, StepContext
from monolith.train import (
    DistributedCpuTrainingConfig,
    Estimator,
    JobProgramConfig,
    RunnerConfig,
    Spec,
    Task,
    Trainer,
    TrainerConfig,
    distributed_sync_train,
)
from monolith.train.roles.local_runner import make_trainer
from ports import free_port
from train.sync_cases import Thirteen, run

DAYS = "COUNTED_DAYS"
"""The variable that has the folder of `Counted`'s files."""


def own_folder(folder: Path) -> Path:
    return folder / "model" / f"index-{collective.rank():04d}"


def apart(folder: Path, **options: Any) -> Any:
    return run(Thirteen, folder, merge_sync_training_ckpt=False, **options)


def case_apart(folder: Path) -> Any:
    """In two pieces; evaluated by what all have saved."""
    first = apart(folder, max_steps=3, save_checkpoints_steps=1, checkpoints_max_to_keep=2)
    if collective.rank() == 1:  # a run that died before its first checkpoint, and that rank 0 has not begun
        GenerationClaim(open_storage(str(own_folder(folder))), above=0)
    trainer = apart(folder, save_checkpoints_steps=1, checkpoints_max_to_keep=2)
    return [first.global_step, trainer.global_step, trainer.evaluate(steps=1)["global_step"]]


def case_named(folder: Path) -> Any:
    """Below a folder with the name of the run; rows removed and saved beside training."""
    config = RunnerConfig(
        model_dir=str(folder / "model"),
        uuid="run7",
        merge_sync_training_ckpt=False,
        save_checkpoints_steps=1,
        embedding_prefetch_capacity=1,
        enable_async_optimize=True,
    )
    return distributed_sync_train(config, Thirteen.params()).global_step


def case_merged_first(folder: Path) -> Any:
    """From a checkpoint of all ranks into directories of their own, and back."""
    steps = [run(Thirteen, folder, max_steps=2).global_step]
    steps.append(apart(folder, max_steps=4).global_step)
    steps.append(run(Thirteen, folder).global_step)
    return steps


def case_begun(folder: Path) -> Any:
    return apart(folder, max_steps=3).global_step


def case_lost(folder: Path) -> Any:
    """The directory of rank 0 is gone; then that of the other rank, of which rank 0 has no copy."""
    apart(folder, max_steps=2)
    collective.barrier()
    if collective.rank() == 0:
        own_folder(folder).rename(folder / "kept")
    collective.barrier()
    told = [_refusal(folder)]
    collective.barrier()
    if collective.rank() == 0:
        shutil.rmtree(own_folder(folder), ignore_errors=True)
        (folder / "kept").rename(own_folder(folder))
        shutil.rmtree(folder / "model" / "index-0001")
    collective.barrier()
    return [*told, _refusal(folder)]


def _refusal(folder: Path) -> list[str]:
    try:
        apart(folder)
    except OpError as error:
        return [type(error).__name__, error.message]
    return []


class FailingDisk(Hook):
    """The files of one rank's save at a step find no space, once."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.failures = 0

    def after_run(self, context: StepContext) -> None:
        if context.global_step != self.step or collective.rank() == 0:
            return
        write = writing.write_tensors  # type: ignore[attr-defined]

        def full(*arguments: Any, **options: Any) -> Any:
            writing.write_tensors = write  # type: ignore[attr-defined]
            self.failures += 1
            raise ResourceExhaustedError("file 'tensors': no space left")

        writing.write_tensors = full  # type: ignore[attr-defined]


def case_disk(folder: Path) -> Any:
    """What fails on one rank fails on all, and is made once more."""
    disk = FailingDisk(2)
    trainer = apart(folder, max_steps=3, save_checkpoints_steps=1, hooks=(disk,))
    return [trainer.global_step, disk.failures]


class KillInCommit(Hook):
    """The last rank is killed when all files of a save are written, and it would commit."""

    def after_run(self, context: StepContext) -> None:
        if context.global_step != 3 or collective.rank() == 0:
            return

        def end(*_: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

        Manifest.to_bytes = end  # type: ignore[assignment, method-assign]  # called between the agreement and the commit


def case_killed(folder: Path) -> Any:
    """One checkpoint stays at a time, so the last whole one must outlive the torn one."""
    hooks = (KillInCommit(),) if not (folder / "again").exists() else ()
    trainer = apart(folder, save_checkpoints_steps=2, checkpoints_max_to_keep=1, hooks=hooks)
    return trainer.global_step


class Counted(Task):
    """The row of an id is the number of times that it was trained, whoever did; files come from a queue."""

    def build(self) -> None:
        slot = ml.Slot(dim=1, initializer=ml.initializers.Zeros())
        self.emb = ml.Embeddings({"id": slot}, optimizer=ml.row_optimizers.Sgd(learning_rate=1.0))

    def input_fn(self, mode: Any) -> Any:
        return JsonLinesDataset(self.ctx.files(f"{environment.get(DAYS)}/day-*.jsonl")).batch(2)

    def model_fn(self, features: Any, mode: Any) -> Spec:
        return Spec(-self.emb(features)["id"].sum())


def counted(folder: Path, *, max_steps: int | None = None, **options: Any) -> int:
    """The step that it came to."""
    config = RunnerConfig(model_dir=str(folder / "model"), enable_dynamic_sharding=True, **options)
    settings = JobProgramConfig(max_steps=max_steps)
    return distributed_sync_train(config, Counted.params(), settings=settings).global_step


def case_counted(folder: Path) -> Any:
    """Begins: into one directory, and into directories of ranks."""
    return [counted(folder / "one", max_steps=2), counted(folder / "each", max_steps=2, merge_sync_training_ckpt=False)]


def case_to_the_end(folder: Path) -> Any:
    """Goes on from what others have saved, until every file is read; in directories of ranks, or in one."""
    steps = {"each": counted(folder / "each", merge_sync_training_ckpt=False)}
    return steps | {name: counted(folder / name) for name in ("one", "served", "merged")}


def case_metrics(folder: Path) -> Any:
    """The numbers of the exchanges, of which the log and event files tell; and the sizes of tables."""
    told = Told()
    logging.getLogger("monolith").addHandler(told)
    logging.getLogger("monolith").setLevel(logging.INFO)
    run(Thirteen, folder, max_steps=4, enable_alltoall_metrics=True, enable_alltoall_metrics_for_slot="2-adagrad")
    logging.getLogger("monolith").removeHandler(told)
    try:
        run(Thirteen, folder, enable_alltoall_metrics=True, enable_alltoall_metrics_for_slot="usr")
    except (OpError, ValueError) as error:
        refused = str(error)
    return [told.about("exchanges of rows"), told.about("tables at step"), refused]


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def about(self, what: str) -> list[str]:
        return [line for line in self.lines if what in line]


def case_accelerator(folder: Path) -> Any:
    """A task that asks for ranks itself: by the maker of trainers, by an estimator, and by a trainer."""
    params = Thirteen.params()
    params.accelerator = "horovod"
    trainer = make_trainer(DistributedCpuTrainingConfig(model_dir=str(folder / "model")), params)
    trainer.train(max_steps=2)
    trainer.release_state()
    estimator = Estimator(params, RunnerConfig(model_dir=str(folder / "model")))
    step = estimator.train(max_steps=4).global_step
    task = params.instantiate()
    by_hand = Trainer(task, TrainerConfig(model_dir=str(folder / "model")))
    last = by_hand.train(max_steps=6).global_step
    return [trainer.global_step, step, last, by_hand.config.worker_index, by_hand.config.num_workers]


def case_command(folder: Path) -> Any:
    """What `monolith train` prints, on each rank."""
    printed = [io.StringIO(), io.StringIO()]
    command = ["train", "train.sync_cases:Thirteen", "--enable_sync_training", "--model_dir", str(folder / "model")]
    with contextlib.redirect_stdout(printed[0]), contextlib.redirect_stderr(printed[1]):
        status = cli.main([*command, "--max_steps", "2"])
        status += cli.main([*command, "--max_steps", "3", "--json"])
        status += cli.main([*command, "--mode", "eval", "--steps", "1"])
    return [status, *(each.getvalue() for each in printed)]


def case_unreadable(folder: Path) -> Any:
    """One rank alone cannot read the dense weights, or has another model."""
    run(Thirteen, folder, max_steps=2)
    read = tensor_file.read_tensors

    def torn(folder: Any, name: str, *_: Any) -> Any:
        raise DataLossError(f"file '{folder.place(name)}': torn")

    if collective.rank():
        tensor_file.read_tensors = torn  # type: ignore[assignment]
    try:
        run(Thirteen, folder)
    except OpError as error:
        told = [type(error).__name__, error.message]
    tensor_file.read_tensors = read
    try:
        run(Thirteen if collective.rank() else Wider, folder)
    except OpError as error:
        told += [type(error).__name__, error.message]
    return [*told, run(Thirteen, folder, max_steps=3).global_step]


class Wider(Thirteen):
    def build(self) -> None:
        super().build()
        self.more = torch.nn.Linear(2, 2)


class StopOne(Hook):
    """The last rank hangs after a step, as a machine does whose disk has gone."""

    def after_run(self, context: StepContext) -> None:
        if context.global_step == 2 and collective.rank() == collective.size() - 1:
            os.kill(os.getpid(), signal.SIGSTOP)


def case_hangs(folder: Path) -> Any:
    """Ends the run of this process, so it is the last case: by the limit of the option, not by that of the others."""
    port = int(collective.broadcast(torch.tensor([free_port()])))
    last = int(collective.allgather(torch.tensor([os.getpid()]))[-1])
    is_first = collective.rank() == 0
    collective.shutdown()
    environment.put("MASTER_PORT", str(port))
    try:
        run(Thirteen, folder, hooks=(StopOne(),), sync_timeout_secs=5.0)
    except OpError as error:
        return [type(error).__name__, error.message]
    finally:
        if is_first:
            os.kill(last, signal.SIGCONT)
    return []
