"""Synchronous training of a task on two ranks that share its rows, compared with one process at twice the batch size.

    python examples/sync_training.py                                        # runs both, and compares
    torchrun --standalone --nproc-per-node 2 examples/sync_training.py /tmp/clicks    # only the ranks

Each rank reads every second batch, and each step applies the batches of both ranks. Gradients of dense weights are
averaged. Those of rows are summed by default, which doubles the learning rate of rows on two ranks; this example sets
`sync_combine` to ``mean``. Expected: an AUC of 0.8 or more on unseen clicks, within 0.01 of that of one process.
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
    """Predicts a click from biases of user and item and the product of their vectors."""

    batches_per_step = 1
    """Number of batches that one process concatenates for each step."""

    def build(self) -> None:
        """Make the tables of users and items; the global bias is the only dense weight."""
        row = [ml.Slice(1, initializer=ml.initializers.Zeros()), ml.Slice(4)]
        slots = {"user": ml.Slot(slices=row), "item": ml.Slot(slices=row)}
        self.rows = ml.Embeddings(slots, ml.row_optimizers.Adagrad(learning_rate=0.3, initial_accumulator_value=1e-8))
        self.dense = nn.ParameterDict({"bias": torch.zeros(())})

    def input_fn(self, mode: Mode) -> GeneratedDataset[Batch]:
        """Return this rank's share of the training batches, or the batches for evaluation."""
        if mode != "train":
            return GeneratedDataset(lambda number: make_clicks([BATCHES + number]), 40)
        share = self.ctx.shares
        mine = range(share.worker, BATCHES, share.num_workers)
        size = self.batches_per_step
        return GeneratedDataset(lambda number: make_clicks(mine[number * size :][:size]), len(mine) // size)

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Compute the log loss of the clicks."""
        rows = self.rows({"user": features["user"], "item": features["item"]}).stack()  # [B, 2, 1 + 4]
        logits = self.dense["bias"] + rows[:, :, 0].sum(1) + (rows[:, 0, 1:] * rows[:, 1, 1:]).sum(1)
        if mode == "predict":
            return Spec(predictions=logits.sigmoid())
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])


class LargeBatchClicks(Clicks):
    """The same task with the examples of all ranks in each step."""

    batches_per_step = RANKS


def make_clicks(numbers: range | list[int]) -> Batch:
    """Generate and concatenate batches: users have tastes, and some items are popular with all users."""
    parts = []
    for number in numbers:
        random = torch.Generator().manual_seed(number)
        user, item = torch.randint(USERS, (BATCH,), generator=random), torch.randint(ITEMS, (BATCH,), generator=random)
        liking = 3.0 * torch.cos(user * 0.7 + item * 1.3) + torch.sin(item * 2.1)
        parts.append((user, item, (torch.rand(BATCH, generator=random) < liking.sigmoid()).float()))
    user, item, label = (torch.cat(column) for column in zip(*parts, strict=True))
    return Batch({"user": user, "item": item, "label": label})


def train_as_rank(model_dir: str) -> None:
    """Train as one of the ranks that torchrun started."""
    distributed_sync_train(RunnerConfig(model_dir=model_dir, sync_combine="mean"), Clicks.params())


def train_together(model_dir: Path) -> None:
    """Run this file with torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command += [f"--nproc-per-node={RANKS}", f"--log-dir={model_dir.with_name('logs')}", __file__, str(model_dir)]
    # The command is this interpreter on this file.
    subprocess.run(command, check=True, env={**environment.starting_with(""), "OMP_NUM_THREADS": "1"})  # noqa: S603


def evaluate(model_dir: Path) -> float:
    """Return the AUC of a checkpoint; those of ranks have the same format as those of one process."""
    trainer = make_trainer(RunnerConfig(model_dir=str(model_dir), is_local=True), Clicks.params())
    return trainer.evaluate()["auc"]


def main() -> None:
    """Train the same task both ways and compare."""
    if len(sys.argv) > 1:
        train_as_rank(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        one, many = Path(folder) / "one", Path(folder) / "many"
        make_trainer(RunnerConfig(model_dir=str(one), is_local=True), LargeBatchClicks.params()).train()
        train_together(many)
        auc = {"one process": evaluate(one), f"{RANKS} ranks": evaluate(many)}
    for name, value in auc.items():
        print(f"AUC of {name}: {value:.3f}")
    assert auc["one process"] >= LEAST_AUC, f"expected an AUC of {LEAST_AUC} or more"
    assert abs(auc[f"{RANKS} ranks"] - auc["one process"]) <= MOST_APART, f"expected to be within {MOST_APART}"


if __name__ == "__main__":
    main()
