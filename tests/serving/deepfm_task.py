"""A DeepFM whose serving rows keep every bit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

import monolith as ml
from monolith.data.batch import Batch
from monolith.tables.compressors import Fp32
from monolith.train import Spec

DIM = 8
SLOTS = ("user", "item", "tags")


def make_batch(number: int, size: int = 64) -> Batch:
    """Ids of one and of many for each example, and numbers."""
    random = torch.Generator().manual_seed(number)
    lengths = torch.randint(0, 4, (size,), generator=random)
    columns: dict[str, Any] = {
        "user": torch.randint(-(2**63), 2**63 - 1, (50,), generator=random)[
            torch.randint(50, (size,), generator=random)
        ],
        "item": torch.randint(100, (size,), generator=random),
        "tags": ml.Ragged.from_lengths(torch.randint(40, (int(lengths.sum()),), generator=random), lengths),
        "price": torch.randn(size, 2, generator=random),
        "label": torch.randint(2, (size,), generator=random).float(),
    }
    return Batch(columns, num_rows=size)


class DeepFM(ml.Task):
    """First order, second order and a network over the same rows."""

    def build(self) -> None:
        exact = Fp32()
        slices = [ml.Slice.bias(), ml.Slice(DIM, compressor=exact)]
        slots = {name: ml.Slot(slices=slices, combiner="mean") for name in SLOTS}
        self.emb = ml.Embeddings({**slots, "tags": ml.Slot(slices=slices, combiner="sqrtn")})
        self.deep = nn.Sequential(nn.Linear(len(SLOTS) * DIM + 2, 32), nn.ReLU(), nn.Linear(32, 1))

    def input_fn(self, mode: Any) -> Iterable[Batch]:
        return [make_batch(number % 4) for number in range(12)]

    def model_fn(self, features: Any, mode: Any) -> Spec:
        rows = self.emb(features).stack()
        bias, vectors = rows[..., 0], rows[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        deep = self.deep(torch.cat([vectors.flatten(1), features["price"]], 1)).squeeze(1)
        logits = bias.sum(1) + pairs + deep
        if mode == "predict":
            self.add_extra_output("pairs", {"pairs": pairs, "vectors": vectors.sum(1)})
            return Spec(predictions=logits.sigmoid())
        return Spec(nn.functional.binary_cross_entropy_with_logits(logits, features["label"]))
