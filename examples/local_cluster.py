"""A task on two parameter servers and two workers of this machine, started from a program; beside it, one process.

    python examples/local_cluster.py

Each worker reads every second batch. Expected: an AUC of 0.8 or more on clicks that nobody was trained on, and at most
0.02 less with several processes than with one. Needs monolith-torch[ps]. One command does the same:

    cd examples && monolith train local_cluster:Clicks --model_dir /tmp/clicks --num_ps 2 --num_workers 2
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import monolith as ml
from monolith.data import Batch, GeneratedDataset
from monolith.launch import LaunchPlan, LocalLauncher, local_job
from monolith.train import RunnerConfig, Spec, make_trainer

if TYPE_CHECKING:
    from monolith.train import Mode

NUM_SERVERS, NUM_WORKERS = 2, 2
USERS, ITEMS, BATCH, BATCHES = 300, 150, 256, 400
LEAST_AUC, MOST_LESS = 0.8, 0.02


class Clicks(ml.Task):
    """A bias for each user and item, and how well their vectors go together."""

    def build(self) -> None:
        """All of its weights are rows, but for one."""
        row = [ml.Slice(1, initializer=ml.initializers.Zeros()), ml.Slice(4)]
        slots = {"user": ml.Slot(slices=row), "item": ml.Slot(slices=row)}
        self.rows = ml.Embeddings(slots, ml.row_optimizers.Adagrad(learning_rate=0.3, initial_accumulator_value=1e-8))
        self.dense = nn.ParameterDict({"bias": torch.zeros(())})

    def input_fn(self, mode: Mode) -> GeneratedDataset[Batch]:
        """To train on, the share of this worker; to evaluate on, batches that no worker has."""
        if mode != "train":
            return GeneratedDataset(lambda number: make_clicks(BATCHES + number), 40)
        share = self.ctx.shares
        mine = range(share.worker, BATCHES, share.num_workers)
        return GeneratedDataset(lambda number: make_clicks(mine[number]), len(mine))

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Log loss of the clicks."""
        rows = self.rows({"user": features["user"], "item": features["item"]}).stack()  # [B, 2, 1 + 4]
        logits = self.dense["bias"] + rows[:, :, 0].sum(1) + (rows[:, 0, 1:] * rows[:, 1, 1:]).sum(1)
        if mode == "predict":
            return Spec(predictions=logits.sigmoid())
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])


def make_clicks(number: int) -> Batch:
    """The batch of a number: users like some items, and some items are liked by all."""
    random = torch.Generator().manual_seed(number)
    user, item = torch.randint(USERS, (BATCH,), generator=random), torch.randint(ITEMS, (BATCH,), generator=random)
    liking = 3.0 * torch.cos(user * 0.7 + item * 1.3) + torch.sin(item * 2.1)
    label = (torch.rand(BATCH, generator=random) < liking.sigmoid()).float()
    return Batch({"user": user, "item": item, "label": label}, num_rows=BATCH)


def alone(model_dir: Path) -> Any:
    """The trainer of one process."""
    return make_trainer(RunnerConfig(model_dir=str(model_dir), is_local=True), Clicks.params())


def train_together(model_dir: Path) -> None:
    """Starts the processes of a job, and waits for its end; the log goes to standard error."""
    plan = LaunchPlan(
        task="local_cluster:Clicks",
        options=RunnerConfig(num_ps=NUM_SERVERS, num_workers=NUM_WORKERS, model_dir=str(model_dir)),
        environment={"PYTHONPATH": str(Path(__file__).parent)},  # where every process finds the task
    )
    with local_job(plan) as job:
        exit_code = LocalLauncher(job).run()
    if exit_code != 0:
        sys.exit(f"the job ended with exit code {exit_code}")


def main() -> None:
    """Trains the same task both ways, and compares."""
    with tempfile.TemporaryDirectory() as folder:
        one, many = Path(folder) / "one", Path(folder) / "many"
        trainer = alone(one)
        trainer.train()
        train_together(many)
        auc = {"one process": trainer.evaluate()["auc"], "a job": alone(many).evaluate()["auc"]}
    for name, value in auc.items():
        print(f"AUC of {name}: {value:.3f}")
    assert auc["one process"] >= LEAST_AUC, f"expected an AUC of {LEAST_AUC} or more"
    assert auc["a job"] >= auc["one process"] - MOST_LESS, f"expected at most {MOST_LESS} less with several processes"


if __name__ == "__main__":
    main()
