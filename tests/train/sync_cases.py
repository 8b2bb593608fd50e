"""Cases of synchronous training that run on all ranks; `test_sync_training` asks for what they return."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import monolith as ml
from monolith import collective
from monolith.checkpoint import Saver, TrainState
from monolith.clock import SystemClock
from monolith.data.dataset import Dataset, Reading
from monolith.errors import OpError
from monolith.hook import Hook, StepContext
from monolith.hooks import timer
from monolith.train import (
    DistributedCpuTrainingConfig,
    SavingConfig,
    Spec,
    Task,
    Trainer,
    TrainerConfig,
    distributed_sync_train,
    trainer_config_of,
)
from monolith.train.config.job_config import JobProgramConfig, SyncConfig
from monolith.train.roles.preparation import take_place


class Batches(Dataset[Any]):
    """Batches by their numbers; the position is the number of the next one."""

    def __init__(self, numbers: list[int], seconds_apart: int = 1) -> None:
        self.numbers, self.seconds_apart = numbers, seconds_apart

    def read(self, position: bytes | None = None) -> Reading[Any]:
        numbers, seconds_apart, begin = self.numbers, self.seconds_apart, int(position or b"0")

        class Numbered(Reading[Any]):
            at = begin

            def __next__(self) -> Any:
                if self.at >= len(numbers):
                    raise StopIteration
                self.at += 1
                return batch(numbers[self.at - 1], seconds_apart)

            @property
            def position(self) -> bytes:
                return str(self.at).encode()

            def close(self) -> None:
                pass

        return Numbered()


def batch(number: int, seconds_apart: int = 1) -> dict[str, Any]:
    """Always the same for a number."""
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(0, 50, (8, 3), generator=generator)
    return {
        "number": number,
        "ids": ids,
        "user": ids[:, 0] % 7,
        "x": torch.randn(8, 4, generator=generator),
        "label": torch.rand(8, generator=generator).round(),
        "req_time": torch.full((8,), 1_700_000_000 + number * seconds_apart),
    }


def numbers_of(rank: int, size: int, total: int) -> list[int]:
    """Step k of rank r trains batch k * size + r."""
    return list(range(rank, total, size))


class DenseTask(Task):
    """No rows."""

    total = 12
    seconds_apart = 1

    def build(self) -> None:
        self.tower = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.05)

    def input_fn(self, mode: Any) -> Dataset[Any] | Iterable[Any]:
        numbers = numbers_of(collective.rank(), collective.size(), self.total)
        return self.ctx.unshared(Batches(numbers, self.seconds_apart))

    def logits(self, features: Mapping[str, Any]) -> torch.Tensor:
        logits: torch.Tensor = self.tower(features["x"]).squeeze(1)
        return logits

    def model_fn(self, features: Mapping[str, Any], mode: Any) -> Spec:
        logits = self.logits(features)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])


class RowsTask(DenseTask):
    """Two slots, one of them by two ids of an example."""

    def build(self) -> None:
        super().build()
        self.emb = ml.Embeddings(
            {"ids": ml.Slot(dim=4, combiner="mean"), "user": ml.Slot(dim=2)},
            optimizer=ml.row_optimizers.Adagrad(learning_rate=0.3),
        )
        self.head = nn.Linear(6, 1)

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam([*self.tower.parameters(), *self.head.parameters()], lr=0.05)

    def logits(self, features: Mapping[str, Any]) -> torch.Tensor:
        of_rows: torch.Tensor = self.head(self.emb(features).concat()).squeeze(1)
        return super().logits(features) + of_rows


def run(
    task: type[Task], folder: Path, *, hooks: tuple[Hook, ...] = (), max_steps: int | None = None, **options: Any
) -> Any:
    """Trains as this rank, and returns its trainer."""
    config = DistributedCpuTrainingConfig(model_dir=str(folder / "model"), **options)
    settings = JobProgramConfig(max_steps=max_steps, deterministic=True)
    return distributed_sync_train(config, task.params(), user_hooks=hooks, settings=settings)


class Watch(Hook):
    """What a rank saw of each step."""

    def __init__(self) -> None:
        self.steps: list[list[Any]] = []

    def after_run(self, context: StepContext) -> None:
        self.steps.append([context.global_step, context.session.last is not None])


def digest_of(state: TrainState) -> str:
    """Of weights and rows, bit for bit; of a state whose rows are in this process."""
    found = hashlib.sha256()
    assert state.model is not None
    for name, value in sorted(state.model.named_parameters()):
        if value.numel() and not name.endswith("_anchor"):
            found.update(name.encode() + value.detach().numpy().tobytes())
    for name, module in sorted(state.embeddings.items()):
        for slot in module.slots:
            found.update(f"{name}/{slot}".encode() + module.lookup(slot, torch.arange(50)).numpy().tobytes())
    return found.hexdigest()


def restored(task: type[Task], folder: Path) -> TrainState:
    """The newest checkpoint, in this process alone."""
    made = task()
    model = made.make_model()
    state = TrainState(model=model, optimizers={"dense": made.optimizers(model)})  # type: ignore[dict-item]
    with Saver(folder / "model") as saver:
        assert saver.restore(state) is not None
    return state


class Counting(Task):
    """One id whose row is the number of batches that it has learned from: -1 times the gradient of -1, added up."""

    steps = 8

    def build(self) -> None:
        slot = ml.Slot(dim=1, initializer=ml.initializers.Zeros())
        self.emb = ml.Embeddings({"user": slot}, optimizer=ml.row_optimizers.Sgd(learning_rate=1.0))
        self.seen: list[int] = []

    def input_fn(self, mode: Any) -> Iterable[Any]:
        less = collective.rank()  # each rank has a batch less than the one before it
        return self.ctx.unshared([{"user": torch.tensor([7]), "req_time": torch.tensor([1])}] * (self.steps - less))

    def model_fn(self, features: Any, mode: Any) -> Spec:
        row = self.emb(features)["user"]
        self.seen.append(round(float(row.detach())))
        return Spec(-row.sum())


class SaveAt(Hook):
    """Settles, as a save does, at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_run(self, context: StepContext) -> None:
        if context.global_step == self.step:
            context.session.settle()


# Cases


def case_dense(folder: Path) -> Any:
    trainer = run(DenseTask, folder, hooks=(watch := Watch(),))
    return {"step": trainer.global_step, "steps": watch.steps}


def case_rows(folder: Path) -> Any:
    trainer = run(RowsTask, folder, hooks=(watch := Watch(),))
    return {"step": trainer.global_step, "steps": watch.steps}


class Expiring(RowsTask):
    """Batches are six hours apart; rows live for a day, and an id comes back after it or does not."""

    total = 36
    seconds_apart = 6 * 3600

    def build(self) -> None:
        super().build()
        self.emb = ml.Embeddings(
            {"ids": ml.Slot(dim=4, combiner="mean", expire_days=1), "user": ml.Slot(dim=2, expire_days=1)},
            optimizer=ml.row_optimizers.Adagrad(learning_rate=0.3),
        )


def case_expiring(folder: Path) -> Any:
    trainer = run(Expiring, folder)
    return {"step": trainer.global_step, "expired": trainer.history.expired_rows}


class Thirteen(RowsTask):
    total = 13


def case_unequal(folder: Path) -> Any:
    """Rank 0 has a batch more than the others."""
    trainer = run(Thirteen, folder, hooks=(watch := Watch(),))
    return {"step": trainer.global_step, "steps": watch.steps}


class OneBatch(RowsTask):
    total = 1


def case_one_batch(folder: Path) -> Any:
    """Of all ranks only rank 0 has any."""
    trainer = run(OneBatch, folder, hooks=(watch := Watch(),), embedding_prefetch_capacity=2)
    return {"step": trainer.global_step, "steps": watch.steps}


PIPELINES: dict[str, tuple[dict[str, Any], int]] = {
    "none": ({}, 0),
    "fwda2a": ({"enable_pipelined_fwda2a": True}, 1),
    "prefetch": ({"embedding_prefetch_capacity": 2}, 2),
    "postpush": ({"enable_embedding_postpush": True}, 1),
    "async": ({"enable_async_optimize": True}, 1),
    "bwda2a": ({"enable_async_optimize": True, "enable_pipelined_bwda2a": True}, 2),
    "all": (
        {
            "enable_pipelined_fwda2a": True,
            "embedding_prefetch_capacity": 1,
            "enable_async_optimize": True,
            "enable_pipelined_bwda2a": True,
        },
        4,
    ),
}
"""Options, and how many updates the rows of a batch lack by them."""


def case_staleness(folder: Path) -> Any:
    found: dict[str, Any] = {}
    for name, (options, _) in PIPELINES.items():
        for settle in (0, 4):
            task = Counting()
            config = DistributedCpuTrainingConfig(enable_sync_training=True, **options)
            take_place(config)
            trainer = Trainer(task, trainer_config_of(config), hooks=[SaveAt(settle), watch := Watch()])
            state = trainer.train()
            row = float(task.emb.lookup("user", torch.tensor([7])))
            found[f"{name}/{settle}"] = [task.seen, row, state.global_step, len(watch.steps)]
    return found


def case_resume(folder: Path) -> Any:
    """In three pieces, with all pipelines, saved in the background."""
    options = {**PIPELINES["all"][0], "save_checkpoints_steps": 2}
    first = run(Thirteen, folder, max_steps=3, **options).global_step
    second = run(Thirteen, folder, max_steps=5, **options).global_step
    return [first, second, run(Thirteen, folder, **options).global_step]


class StopSelf(Hook):
    """A signal for one rank."""

    def after_run(self, context: StepContext) -> None:
        if context.global_step == 2 and collective.rank() == collective.size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)


def case_signal(folder: Path) -> Any:
    return run(RowsTask, folder, hooks=(StopSelf(),)).global_step


class StoppedClock(SystemClock):
    """By which no second ever passes."""

    def monotonic(self) -> float:
        return 0.0


def case_by_seconds(folder: Path) -> Any:
    """By the clock of rank 0 every step is late enough, by those of the others none is."""
    if collective.rank():
        timer.SystemClock = StoppedClock  # type: ignore[attr-defined]
    saving = SavingConfig(every_seconds=1e-6, max_to_keep=None)
    part: dict[str, Any] = {"worker_index": collective.rank(), "num_workers": collective.size(), "sync": SyncConfig()}
    try:
        Trainer(RowsTask(), TrainerConfig(model_dir=str(folder / "model"), saving=saving, **part)).train(max_steps=3)
    finally:
        timer.SystemClock = SystemClock  # type: ignore[attr-defined]
    return None


class MeanRows(RowsTask):
    """One full batch of all ranks in the place of theirs."""


def case_mean(folder: Path) -> Any:
    return run(MeanRows, folder, sync_combine="mean").global_step


class Broken(RowsTask):
    """The third batch of the last rank makes a NaN."""

    where = "loss"

    def model_fn(self, features: Mapping[str, Any], mode: Any) -> Spec:
        spec = super().model_fn(features, mode)
        size = collective.size()
        if features["number"] != 3 * size - 1 or spec.loss is None:
            return spec
        if self.where == "loss":
            return Spec(spec.loss * float("nan"))
        if self.where == "weight":
            weight = next(self.tower.parameters())
            weight.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[no-untyped-call]
            return spec
        row = self.emb(features)["user"]
        row.register_hook(lambda gradient: gradient * float("nan"))
        return Spec(spec.loss + row.sum())


class BrokenWeight(Broken):
    where = "weight"


def case_nan(folder: Path) -> Any:
    told = []
    for task in (Broken, BrokenWeight):
        try:
            run(task, folder / task.__name__)
        except OpError as error:
            told.append(str(error))
    return told


class OtherModel(DenseTask):
    def build(self) -> None:
        width = 3 + collective.rank()
        self.tower = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))


class OtherTables(RowsTask):
    def build(self) -> None:
        super().build()
        self.emb = ml.Embeddings({"ids": ml.Slot(dim=6, combiner="mean")}, seed=collective.rank())


class OtherRate(DenseTask):
    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.05 * (1 + collective.rank()))


def case_different(folder: Path) -> Any:
    """Ranks that are not alike; the run can go on after each refusal."""
    told = {}
    runs: list[tuple[str, type[DenseTask], dict[str, Any]]] = [
        ("model", OtherModel, {}),
        ("tables", OtherTables, {}),
        ("optimizer", OtherRate, {}),
        ("config", DenseTask, {"embedding_prefetch_capacity": collective.rank()}),
    ]
    for name, task, options in runs:
        try:
            run(task, folder / name, **options)
        except (OpError, ValueError) as error:
            told[name] = str(error)
    return told


def case_places(folder: Path) -> Any:
    """Numbers that are not those of the launcher."""
    told = []
    for options in ({"index": 5}, {"num_workers": 7}, {"num_ps": 2}, {"enable_sync_training": False}):
        try:
            run(DenseTask, folder, **options)
        except ValueError as error:
            told.append(str(error))
    return told
