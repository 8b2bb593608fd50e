"""A task whose serving rows keep every bit, so that served and trained models can be compared exactly."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import monolith as ml
from monolith.tables.compressors import Fp32
from monolith.testing import NumberedBatches
from monolith.train import InstantiableParams, Mode
from train.shared_clicks import SharedClicks


class ExactClicks(SharedClicks):
    """Clicks, by rows that are served as they were trained."""

    def build(self) -> None:
        exact = Fp32()
        self.emb = ml.Embeddings({"user": ml.Slot(dim=4, compressor=exact), "item": ml.Slot(dim=4, compressor=exact)})
        self.top = nn.Linear(8, 1)

    def input_fn(self, mode: Mode) -> Any:
        if mode == "train":
            return super().input_fn(mode)
        return NumberedBatches(num_batches=2, batch_size=32, num_ids=200)


class ExportedClicks(ExactClicks):
    """Exports with each checkpoint."""

    @classmethod
    def params(cls) -> InstantiableParams:
        p = super().params()
        p.serving.export_when_saving = True
        return p


def asked() -> dict[str, torch.Tensor]:
    """Users and items that were trained, and some that were not."""
    return {"user": torch.arange(300) - 20, "item": torch.arange(300).flip(0)}


def exporting(**serving: Any) -> Any:
    """Parameters of a task that exports with each checkpoint."""
    return ExportedClicks.params().set(**{f"serving.{name}": value for name, value in serving.items()})
