"""The tasks of killed runs: a model with every kind of state that a checkpoint holds, and one that counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from monolith.data import ClickStream, SyntheticClicks
from monolith.nn import Embeddings, Slot
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd
from monolith.train import InstantiableParams, Mode, Spec, Task

WORLD = SyntheticClicks(num_users=4_000, num_items=1_000, num_tags=50, examples_per_day=2_000, item_life_days=2.0)


class CrashTask(Task):
    """Reads generated clicks."""

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the parameters, with the size and the seed of its input."""
        p = super().params()
        p.define("num_steps", 40, "Batches of the input.")
        p.define("batch_size", 256, "Examples of a batch.")
        p.define("seed", 0, "Of the input.")
        return p

    def input_fn(self, mode: Mode) -> ClickStream:
        """Returns clicks."""
        p = self.p
        return ClickStream(p.num_steps * p.batch_size, batch_size=p.batch_size, seed=p.seed, world=WORLD)


class EverythingTask(CrashTask):
    """Admission, expiry, dropout, a schedule, Adam and Adagrad: every kind of state that must be restored."""

    def build(self) -> None:
        """Creates a small network over four slots."""
        slots = {
            "user": Slot(8, min_count=1, expire_days=3),
            "item": Slot(8, expire_days=1),
            "tags": Slot(4, combiner="mean"),
            "context": Slot(4),
        }
        self.emb = Embeddings(slots, admission=SlidingHashFilter(capacity=10_000))
        self.deep = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Returns the log loss of the clicks."""
        logits = self.deep(self.emb(features).concat())
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])

    def schedules(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> Mapping[str, Any]:
        """Returns a decaying learning rate."""
        return {name: torch.optim.lr_scheduler.ExponentialLR(each, 0.99) for name, each in optimizers.items()}


class CountingTask(CrashTask):
    """Counts: after training, the row of an id is the number of its occurrences in the data.

    Rows start at 0; each occurrence has the gradient -1, and the learning rate is 1.
    """

    def build(self) -> None:
        """Creates one number for each id, and one for all examples."""
        slot = Slot(1, initializer=Zeros())
        self.emb = Embeddings({"user": slot, "item": slot, "tags": slot}, Sgd(learning_rate=1.0))
        self.total = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.total.weight)

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Returns a loss whose gradient is -1 for each occurrence."""
        counts = self.emb(features).concat().sum()
        return Spec(loss=-counts - self.total(torch.ones(features.num_rows, 1)).sum())

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        """Returns SGD with learning rate 1, which adds the negative gradient."""
        return torch.optim.SGD(model.parameters(), lr=1.0)

    def miscounts(self) -> list[str]:
        """Returns the differences between the rows and a plain count of the data, one line each; for a trained task."""
        expected: dict[str, dict[int, int]] = {name: {} for name in self.emb.slots}
        num_examples = 0
        for batch in self.input_fn("train"):
            num_examples += batch.num_rows
            for name, counts in expected.items():
                column: Any = batch[name]
                values = column.flat_values if name == "tags" else column
                for key in values.tolist():
                    counts[key] = counts.get(key, 0) + 1
        wrong = []
        for name, counts in expected.items():
            rows = self.emb.lookup(name, torch.tensor(list(counts))).reshape(-1).tolist()
            pairs = zip(counts.items(), rows, strict=True)
            wrong += [f"{name} {key}: {n} in the data, {row:g} learned" for (key, n), row in pairs if n != row]
        num_rows = sum(map(len, expected.values()))
        if self.emb.num_rows != num_rows:
            wrong.append(f"{num_rows} ids in the data, {self.emb.num_rows} rows")
        if self.total.weight.item() != num_examples:
            wrong.append(f"{num_examples} examples in the data, {self.total.weight.item():g} learned")
        return wrong
