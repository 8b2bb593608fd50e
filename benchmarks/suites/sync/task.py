"""What ranks train while they are measured: rows of 26 slots, and a small tower over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from monolith.cli._bench import ours
from monolith.cli._bench.peers import INITIAL_ACCUMULATOR, LEARNING_RATE
from monolith.cli._bench.workload import SEED, mixed_ids, zipf_ranks
from monolith.nn import Embeddings, Slot
from monolith.tables.initializers import RandomUniform
from monolith.tables.row_optimizers import Adagrad
from monolith.train import Spec, Task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.cli._bench.setting import Setting
    from monolith.cli._bench.workload import Ids

__all__ = ["HIDDEN", "SyncTower", "batches_of", "new_tower", "row_numbers", "rows_per_slot", "slot_names"]

HIDDEN = 64
"""Units of the tower."""
DENSE_LEARNING_RATE = 1e-3
DISTINCT_BATCHES = 32
"""At most; every rank has all of its batches in memory."""


def new_tower(num_slots: int) -> nn.Module:
    """Returns the dense part, the same for every contestant."""
    return nn.Sequential(nn.Linear(num_slots * ours.DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


class SyncTower(Task):
    """Log loss of clicks."""

    slots: list[str]

    def build(self) -> None:
        """One table of all slots with Adagrad."""
        rows = Slot(dim=ours.DIM, initializer=RandomUniform(-0.05, 0.05))
        adagrad = Adagrad(learning_rate=LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR)
        self.emb = Embeddings(dict.fromkeys(self.slots, rows), adagrad)
        self.top = new_tower(len(self.slots))

    def model_fn(self, features: Any, mode: str) -> Spec:  # noqa: ARG002 - trained only
        """Of the outputs side by side."""
        logits = self.top(self.emb(features).concat()).squeeze(1)
        return Spec(nn.functional.binary_cross_entropy_with_logits(logits, features["label"]))

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:  # noqa: ARG002 - rows have their own
        """Adam."""
        return torch.optim.Adam(self.top.parameters(), lr=DENSE_LEARNING_RATE)


def slot_names(setting: Setting) -> list[str]:
    """Of all slots."""
    return [f"slot_{number}" for number in range(setting.features)]


def rows_per_slot(setting: Setting) -> int:
    """Returns the number of rows of each slot."""
    return max(1, setting.small_rows // setting.features)


def row_numbers(setting: Setting, rank: int) -> list[tuple[Ids, torch.Tensor]]:
    """Returns the batches of a rank: rows of each slot, int64 [slots, examples], and labels."""
    generator = np.random.default_rng(SEED + rank)
    shape = setting.features, setting.examples
    return [
        (
            zipf_ranks(generator, num_rows=rows_per_slot(setting), count=shape[0] * shape[1]).reshape(shape),
            torch.from_numpy(generator.integers(0, 2, setting.examples).astype(np.float32)),
        )
        for _ in range(min(DISTINCT_BATCHES, setting.num_batches))
    ]


def batches_of(setting: Setting, ranks: Iterable[int]) -> list[dict[str, torch.Tensor]]:
    """Returns the batches of these ranks, each batch that of all of them end to end."""
    per_slot, made = rows_per_slot(setting), []
    for parts in zip(*(row_numbers(setting, rank) for rank in ranks), strict=True):
        rows = np.concatenate([each[0] for each in parts], axis=1)
        columns = {
            name: torch.from_numpy(mixed_ids(slot * per_slot + rows[slot]))
            for slot, name in enumerate(slot_names(setting))
        }
        made.append(columns | {"label": torch.cat([each[1] for each in parts])})
    return made
