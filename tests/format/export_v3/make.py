"""Writes the export beside it and what it must answer. Run once; kept so that one can see what the files hold.

Usage: python tests/format/export_v3/make.py
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import monolith as ml
from monolith.data import Batch
from monolith.serving import ExportConfig, Predictor
from monolith.tables.compressors import Fp32
from monolith.testing import FakeClock
from monolith.train import Spec, Trainer

REQUEST = {"user": [1, 2, 9], "price": [[0.5], [1.0], [-1.0]]}
"""User 9 has no row."""


class Model(ml.Task):
    """One table, one column of numbers, one layer."""

    def build(self) -> None:
        self.emb = ml.Embeddings({"user": ml.Slot(dim=2, compressor=Fp32())})
        self.top = nn.Linear(3, 1)

    def input_fn(self, mode: Any) -> Iterable[Batch]:
        columns = {
            "user": torch.tensor([1, 2]),
            "price": torch.tensor([[0.5], [1.0]]),
            "label": torch.tensor([0.0, 1.0]),
        }
        return [Batch(columns, num_rows=2)] * 2

    def model_fn(self, features: Any, mode: Any) -> Spec:
        logits = self.top(torch.cat([self.emb(features).concat(), features["price"]], dim=1)).squeeze(1)
        if mode == "predict":
            return Spec(predictions=logits)
        return Spec(
            nn.functional.binary_cross_entropy_with_logits(logits, features["label"]), logits, features["label"]
        )


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = Trainer(Model)
    trainer.train(steps=2)
    folder = Path(__file__).parent
    shutil.rmtree(folder / "export", ignore_errors=True)
    example = {"user": torch.tensor([1, 2]), "price": torch.tensor([[0.5], [1.0]])}
    options = ExportConfig(version=7, clock=FakeClock(now=1_700_000_000.0))
    trainer.export(str(folder / "export"), example=example, options=options)
    with Predictor(str(folder / "export")) as predictor:
        answer = predictor.predict(REQUEST).outputs["predictions"].tolist()
    (folder / "contents.json").write_text(json.dumps({"request": REQUEST, "predictions": answer}, indent=1) + "\n")
