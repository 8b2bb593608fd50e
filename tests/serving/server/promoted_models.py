"""A model whose answers are known, in versions that differ, for tests of which one answers."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import monolith as ml
from monolith.data.batch import Batch
from monolith.export.writer import ExportConfig
from monolith.online import DeltaPublisher
from monolith.tables.compressors import Fp32
from monolith.train import Spec, Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

PATIENCE = 60.0
USERS = torch.arange(8)


def batch() -> Batch:
    """Examples whose label is whether x is above 0."""
    x = torch.linspace(-2.0, 2.0, 8)
    return Batch({"user": USERS, "x": x, "label": (x > 0).float()}, num_rows=8)


class Slope(ml.Task):
    """Predicts sigmoid(slope * x + row of the user): ranks all right with a slope above 0, all wrong below."""

    def build(self) -> None:
        self.emb = ml.Embeddings({"user": ml.Slot(dim=1, compressor=Fp32())})
        self.slope = nn.Linear(1, 1, bias=False)

    def input_fn(self, mode: Any) -> Iterable[Batch]:
        return [batch()]

    def model_fn(self, features: Any, mode: Any) -> Spec:
        logits = (self.slope(features["x"][:, None]) + self.emb({"user": features["user"]})["user"]).squeeze(1)
        if mode == "predict":
            return Spec(predictions=logits.sigmoid())
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])


class Versions:
    """Makes exports, and increments of a delta log, of a slope and of rows that are chosen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trainer = Trainer(Slope)
        self.trainer.train(steps=1)
        assert self.trainer.state is not None
        self.state = self.trainer.state
        self.set_rows(0.0)

    def set_rows(self, value: float) -> None:
        self.state.embeddings["emb"].assign("user", USERS, torch.full((len(USERS), 1), value))

    def set_slope(self, slope: float) -> None:
        with torch.no_grad():
            self.state.model["slope"].weight.fill_(slope)  # type: ignore[index]

    def export(self, version: int, slope: float, *, dense_only: bool = False) -> None:
        self.set_slope(slope)
        options = ExportConfig(version=version, dense_only=dense_only)
        self.trainer.export(str(self.folder), example=batch(), options=options)

    def publisher(self, log: Path) -> DeltaPublisher:
        def dense() -> dict[str, torch.Tensor]:
            return {name: weight.data for name, weight in self.state.model.named_parameters()}  # type: ignore[union-attr]

        return DeltaPublisher(self.state.stores, str(log), dense=dense, dense_interval=1e-6)


def score(slope: float, x: float = 1.0, row: float = 0.0) -> float:
    """What a version answers."""
    return 1.0 / (1.0 + math.exp(-(slope * x + row)))


def write_gate(path: Path, **fields: Any) -> Path:
    """A gate with the examples of `batch`."""
    columns: Any = batch()
    rows = zip(columns["user"].tolist(), columns["x"].tolist(), columns["label"].tolist(), strict=True)
    lines = [json.dumps({"user": user, "x": x, "label": label}) for user, x, label in rows]
    (path.parent / "examples.jsonl").write_text("\n".join(lines) + "\n")
    path.write_text(json.dumps({"examples": "examples.jsonl", **fields}))
    return path


def wait_until(reached: Callable[[], Any]) -> None:
    """Returns when something is so."""
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
