"""A task in lock-step on two ranks, which share its rows; beside it, one process with batches of twice the size.

    python examples/sync_training.py                                        # starts both, and compares
    torchrun --standalone --nproc-per-node 2 examples/sync_training.py /tmp/clicks    # the ranks alone

Each rank reads every second batch, and each step applies the batches of both. Dense gradients are averaged, those of
rows are added: for the rows a step on two ranks is one of twice the learning rate, unless `sync_combine` says ``mean``,
as it does here. Expected: an AUC of 0.8 or more on clicks that nobody was trained on, and within 0.01 of one process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import monolith as ml
from monolith import environment
from monolith.data import Batch, GeneratedDataset
from monolith.train import RunnerConfig, Spec, distributed_sync_train, make_trainer

if TYPE_CHECKING:
    from monolith.train import Mode

RANKS = 2
USERS, ITEMS, BATCH, BATCHES = 300, 150, 256, 400
LEAST_AUC, MOST_APART = 0.8, 0.01


class Clicks(ml.Task):
    """A bias for each user and item, and how well their vectors go together."""

    at_once = 1
    """Batches that one process trains as one."""

    def build(self) -> None:
        """All of its weights are rows, but for one."""
        row = [ml.Slice(1, initializer=ml.initializers.Zeros()), ml.Slice(4)]
        slots = {"user": ml.Slot(slices=row), "item": ml.Slot(slices=row)}
        self.rows = ml.Embeddings(slots, ml.row_optimizers.Adagrad(learning_rate=0.3, initial_accumulator_value=1e-8))
        self.dense = nn.ParameterDict({"bias": torch.zeros(())})

    def input_fn(self, mode: Mode) -> GeneratedDataset[Batch]:
        """To train on, the share of this rank; to evaluate on, batches that no rank has."""
        if mode != "train":
            return GeneratedDataset(lambda number: make_clicks([BATCHES + number]), 40)
        share = self.ctx.shares
        mine = range(share.worker, BATCHES, share.num_workers)
        at_once = self.at_once
        return GeneratedDataset(lambda number: make_clicks(mine[number * at_once :][:at_once]), len(mine) // at_once)

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Log loss of the clicks."""
        rows = self.rows({"user": features["user"], "item": features["item"]}).stack()  # [B, 2, 1 + 4]
        logits = self.dense["bias"] + rows[:, :, 0].sum(1) + (rows[:, 0, 1:] * rows[:, 1, 1:]).sum(1)
        if mode == "predict":
            return Spec(predictions=logits.sigmoid())
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])


class ClicksAtOnce(Clicks):
    """The same on as many examples a step as all ranks have together."""

    at_once = RANKS


def make_clicks(numbers: range | list[int]) -> Batch:
    """The batches of these numbers as one: users like some items, and some items are liked by all."""
    parts = []
    for number in numbers:
        random = torch.Generator().manual_seed(number)
        user, item = torch.randint(USERS, (BATCH,), generator=random), torch.randint(ITEMS, (BATCH,), generator=random)
        liking = 3.0 * torch.cos(user * 0.7 + item * 1.3) + torch.sin(item * 2.1)
        parts.append((user, item, (torch.rand(BATCH, generator=random) < liking.sigmoid()).float()))
    user, item, label = (torch.cat(column) for column in zip(*parts, strict=True))
    return Batch({"user": user, "item": item, "label": label})


def train_as_rank(model_dir: str) -> None:
    """What every rank does; torchrun says which one it is."""
    distributed_sync_train(RunnerConfig(model_dir=model_dir, sync_combine="mean"), Clicks.params())


def train_together(model_dir: Path) -> None:
    """Starts torchrun on this file."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command += [f"--nproc-per-node={RANKS}", f"--log-dir={model_dir.with_name('logs')}", __file__, str(model_dir)]
    # The interpreter that runs us, on this file.
    subprocess.run(command, check=True, env={**environment.starting_with(""), "OMP_NUM_THREADS": "1"})  # noqa: S603


def evaluate(model_dir: Path) -> float:
    """The AUC of what is saved there; the checkpoint of ranks is like any other."""
    trainer = make_trainer(RunnerConfig(model_dir=str(model_dir), is_local=True), Clicks.params())
    return trainer.evaluate()["auc"]


def main() -> None:
    """Trains the same task both ways, and compares."""
    if len(sys.argv) > 1:
        train_as_rank(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        one, many = Path(folder) / "one", Path(folder) / "many"
        make_trainer(RunnerConfig(model_dir=str(one), is_local=True), ClicksAtOnce.params()).train()
        train_together(many)
        auc = {"one process": evaluate(one), f"{RANKS} ranks": evaluate(many)}
    for name, value in auc.items():
        print(f"AUC of {name}: {value:.3f}")
    assert auc["one process"] >= LEAST_AUC, f"expected an AUC of {LEAST_AUC} or more"
    assert abs(auc[f"{RANKS} ranks"] - auc["one process"]) <= MOST_APART, f"expected to be within {MOST_APART}"


if __name__ == "__main__":
    main()
