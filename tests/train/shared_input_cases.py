"""A task that reads one CSV file as a new user writes it, and counts how often each of its lines was trained.

Its cases run on several ranks, see `sync_ranks`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import monolith as ml
from monolith import environment
from monolith.data import CsvDataset, Dataset
from monolith.train import (
    JobProgramConfig,
    RunnerConfig,
    Spec,
    Trainer,
    TrainerConfig,
    current_context,
    distributed_sync_train,
)

FILE = "SHARED_CSV"
ROWS = 1200
BATCH = 32


class Clicks(ml.Task):
    """Predicts clicks of users on items; the row of ``line`` counts how often that line was trained."""

    def build(self) -> None:
        fast = ml.row_optimizers.Adagrad(learning_rate=0.3)
        self.emb = ml.Embeddings({"user": ml.Slot(dim=4), "item": ml.Slot(dim=4)}, fast)
        line = ml.Slot(1, initializer=ml.initializers.Zeros())
        self.lines = ml.Embeddings({"line": line}, ml.row_optimizers.Sgd(learning_rate=1.0))
        self.top = nn.Linear(8, 1)
        nn.init.ones_(self.top.weight)  # runs differ by the order of their batches alone
        nn.init.zeros_(self.top.bias)

    def input_fn(self, mode: str) -> Any:
        columns = {"line": "int", "user": "int", "item": "int", "label": "float"}
        return CsvDataset(str(environment.get(FILE)), columns).batch(BATCH)

    def model_fn(self, features: Any, mode: str) -> Spec:
        logits, label = self.top(self.emb(features).concat()).squeeze(1), features["label"]
        loss = nn.functional.binary_cross_entropy_with_logits(logits, label) - self.lines(features)["line"].sum()
        return Spec(loss, predictions=logits.sigmoid(), label=label)


class FromGenerator(Clicks):
    """The same from a generator."""

    def input_fn(self, mode: str) -> Any:
        return (batch for batch in super().input_fn(mode))


class Own(Dataset[Any]):
    """A dataset that does not say how it is shared."""

    def __init__(self, source: Dataset[Any]) -> None:
        self._source = source

    def read(self, position: bytes | None = None) -> Any:
        return self._source.read(position)


class OwnDataset(Clicks):
    """The same from such a dataset."""

    def input_fn(self, mode: str) -> Any:
        return Own(super().input_fn(mode))


class TwoBatches(Clicks):
    """The first two batches."""

    def input_fn(self, mode: str) -> Any:
        return super().input_fn(mode).take(2)


class Whole(Clicks):
    """Two batches for each worker."""

    def input_fn(self, mode: str) -> Any:
        return self.ctx.unshared(list(super().input_fn(mode).take(2)))


class ByPlace(Clicks):
    """Two batches of its own for each worker, by the place in the job."""

    def input_fn(self, mode: str) -> Any:
        return super().input_fn(mode).skip(2 * current_context().worker_index).take(2)


class ByHand(Clicks):
    """The share as the task itself chooses it."""

    def input_fn(self, mode: str) -> Any:
        return super().input_fn(mode).share(*self.ctx.shares)


def write_clicks(path: Path) -> None:
    draw = torch.Generator().manual_seed(5)
    users, items = torch.randint(40, (2, ROWS), generator=draw).tolist()
    pairs = enumerate(zip(users, items, strict=True))
    lines = [f"{line},{user},{item},{int(user % 5 + item % 5 >= 4)}" for line, (user, item) in pairs]
    path.write_text("\n".join(["line,user,item,label", *lines]) + "\n")


def outcome(model_dir: str) -> dict[str, Any]:
    """How often lines were trained (times -> lines), and how well the model predicts all of them."""
    trainer = Trainer(Clicks(), TrainerConfig(model_dir=model_dir))
    found = trainer.evaluate()
    with trainer.inference_session() as session:
        model: Any = session.state.model
        counts = model["lines"]({"line": torch.arange(ROWS)})["line"].detach().squeeze(1).tolist()
    times = [round(count, 3) for count in counts]
    return {**found, "trained": {each: times.count(each) for each in set(times)}}


def case_trained(folder: Path) -> int:
    """The step that it came to."""
    return distributed_sync_train(RunnerConfig(model_dir=str(folder / "model")), Clicks.params()).global_step


def case_by_hand(folder: Path) -> int:
    return distributed_sync_train(RunnerConfig(model_dir=str(folder / "model")), ByHand.params()).global_step


def case_refused(folder: Path) -> str:
    try:
        distributed_sync_train(RunnerConfig(model_dir=str(folder / "model")), FromGenerator.params())
    except ml.errors.InvalidArgumentError as error:
        return str(error)
    return "nothing"


def case_begun(folder: Path) -> int:
    """Stops in the middle."""
    config = RunnerConfig(model_dir=str(folder.parent.parent / "begun"))
    return distributed_sync_train(config, Clicks.params(), settings=JobProgramConfig(max_steps=7)).global_step


def case_ended(folder: Path) -> int:
    """Resumes with another number of ranks."""
    config = RunnerConfig(model_dir=str(folder.parent.parent / "begun"))
    return distributed_sync_train(config, Clicks.params()).global_step
