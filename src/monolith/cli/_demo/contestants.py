"""The contestants: a model that learns online, one that stopped learning, and one whose ids are hashed.

All have the same architecture, the same first weights and the same optimizers, and see the same examples in the same
order. Every example is predicted before it is trained on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import torch

from monolith.cli._demo.click_model import BYTES_PER_BARE_ROW, ROW, ClickModel
from monolith.data.click_world import NUM_CONTEXTS
from monolith.nn import Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from monolith.data import Batch, ClickWorld
    from monolith.tensors import Ragged

    Ids = dict[str, Tensor | Ragged]

SLOTS = ("user", "item", "tags", "context")
USER_DAYS, ITEM_DAYS = 10, 4


class Contestant(Protocol):
    """A model in the race."""

    def judge(self, batch: Batch) -> Tensor:
        """Logits [B] from before the batch was learned from."""
        ...


class Online:
    """A row for every id that returns; rows of ids that left are dropped."""

    def __init__(self, seed: int, stage_ends: Callable[[str], None] = lambda _: None) -> None:
        self.model = _model_with_own_rows(seed)
        self._stage_ends = stage_ends
        self.inserted = 0
        """Rows that came into being so far."""
        self.kept_out = 0
        """Ids that were met and got no row, counted at each batch."""

    def judge(self, batch: Batch) -> Tensor:
        """Predicts, then learns."""
        time = cast("Tensor", batch["req_time"])
        logits, applied = self.model.learn(_ids(batch), _clicks(batch), time, stage_ends=self._stage_ends)
        self.inserted += applied.inserted
        self.kept_out += applied.filtered
        return logits


class Frozen:
    """A copy of another model that never learns again."""

    def __init__(self, online: Online, seed: int) -> None:
        self.model = _model_with_own_rows(seed).eval()
        self.model.take_over(online.model)

    @torch.no_grad()
    def judge(self, batch: Batch) -> Tensor:
        """Predicts only."""
        logits: Tensor = self.model(_ids(batch))
        return logits


class Hashed:
    """Ids of users and items modulo the size of one array; tags and contexts, of which there are few, have own rows.

    Args:
        memory_bytes: Of all rows, with the optimizer's state; an array needs neither keys nor an index.
        world: How many tags and contexts there are.
        seed: Of the first weights.
    """

    def __init__(self, memory_bytes: int, world: ClickWorld, seed: int) -> None:
        self.num_rows = memory_bytes // BYTES_PER_BARE_ROW - world.num_tags - NUM_CONTEXTS
        """Rows that users and items share."""
        slots = {
            "user": Slot(slices=ROW),
            "item": Slot(shares="user"),
            "tags": Slot(slices=ROW, combiner="mean"),
            "context": Slot(slices=ROW),
        }
        self.model = ClickModel(slots, seed=seed)

    def judge(self, batch: Batch) -> Tensor:
        """Predicts, then learns."""
        ids = _ids(batch)
        for name in ("user", "item"):
            ids[name] = cast("Tensor", ids[name]) % self.num_rows
        return self.model.learn(ids, _clicks(batch), None)[0]


def _model_with_own_rows(seed: int) -> ClickModel:
    slots = {
        "user": Slot(slices=ROW, min_count=1, expire_days=USER_DAYS),
        "item": Slot(slices=ROW, expire_days=ITEM_DAYS),
        "tags": Slot(slices=ROW, combiner="mean"),
        "context": Slot(slices=ROW),
    }
    return ClickModel(slots, seed=seed)


def _ids(batch: Batch) -> Ids:
    return {name: cast("Tensor | Ragged", batch[name]) for name in SLOTS}


def _clicks(batch: Batch) -> Tensor:
    return cast("Tensor", batch["label"]).view(-1)
