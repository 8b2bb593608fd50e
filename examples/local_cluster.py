"""Start a task on two parameter servers and two workers of this machine, and compare with one process.

    python examples/local_cluster.py

Each worker reads every second batch. Expected: an AUC of 0.8 or more on clicks that are not trained on, and at most
0.02 less with several processes than with one. Needs monolith-torch[ps]. One command starts the same job:

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
    """Predicts a click from biases of user and item and the product of their vectors."""

    def build(self) -> None:
        """Make the tables of users and items; the global bias is the only dense weight."""
        row = [ml.Slice(1, initializer=ml.initializers.Zeros()), ml.Slice(4)]
        slots = {"user": ml.Slot(slices=row), "item": ml.Slot(slices=row)}
        self.rows = ml.Embeddings(slots, ml.row_optimizers.Adagrad(learning_rate=0.3, initial_accumulator_value=1e-8))
        self.dense = nn.ParameterDict({"bias": torch.zeros(())})

    def input_fn(self, mode: Mode) -> GeneratedDataset[Batch]:
        """Return this worker's share of the training batches, or the batches for evaluation."""
        if mode != "train":
            return GeneratedDataset(lambda number: make_clicks(BATCHES + number), 40)
        share = self.ctx.shares
        mine = range(share.worker, BATCHES, share.num_workers)
        return GeneratedDataset(lambda number: make_clicks(mine[number]), len(mine))

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Compute the log loss of the clicks."""
        rows = self.rows({"user": features["user"], "item": features["item"]}).stack()  # [B, 2, 1 + 4]
        logits = self.dense["bias"] + rows[:, :, 0].sum(1) + (rows[:, 0, 1:] * rows[:, 1, 1:]).sum(1)
        if mode == "predict":
            return Spec(predictions=logits.sigmoid())
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])


def make_clicks(number: int) -> Batch:
    """Generate batch ``number``: users have tastes, and some items are popular with all users."""
    random = torch.Generator().manual_seed(number)
    user, item = torch.randint(USERS, (BATCH,), generator=random), torch.randint(ITEMS, (BATCH,), generator=random)
    liking = 3.0 * torch.cos(user * 0.7 + item * 1.3) + torch.sin(item * 2.1)
    label = (torch.rand(BATCH, generator=random) < liking.sigmoid()).float()
    return Batch({"user": user, "item": item, "label": label}, num_rows=BATCH)


def alone(model_dir: Path) -> Any:
    """Return the trainer of one process."""
    return make_trainer(RunnerConfig(model_dir=str(model_dir), is_local=True), Clicks.params())


def train_together(model_dir: Path) -> None:
    """Start the processes of a job and wait for its end; the log is written to standard error."""
    plan = LaunchPlan(
        task="local_cluster:Clicks",
        options=RunnerConfig(num_ps=NUM_SERVERS, num_workers=NUM_WORKERS, model_dir=str(model_dir)),
        environment={"PYTHONPATH": str(Path(__file__).parent)},  # every process imports the task from here
    )
    with local_job(plan) as job:
        exit_code = LocalLauncher(job).run()
    if exit_code != 0:
        sys.exit(f"the job ended with exit code {exit_code}")


def main() -> None:
    """Train the same task both ways and compare."""
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
