"""The model that is served while serving is measured: DeepFM over 26 slots of 1 + 16 floats, towers of 256 and 128."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from monolith.data.protos.example_pb2 import ExampleBatch, FeatureListType
from monolith.nn import Embeddings, Slice, Slot
from monolith.train import Session, Spec, Task
from monolith.train.export.exporting import export_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_SLOTS, DIM, CANDIDATES = 26, 16, 100
NUM_SHARED = 20
"""Columns of the user, which all candidates of a request have in common."""
NAMES = [f"slot_{number:02}" for number in range(NUM_SLOTS)]
_EXAMPLES = 8192
"""Of a step while a model is filled."""


class ServedDeepFm(Task):
    """First order, second order and a network over the same rows."""

    def build(self) -> None:
        """Rows of a bias and a vector."""
        self.emb = Embeddings({name: Slot(slices=[Slice.bias(), Slice(DIM)]) for name in NAMES})
        self.deep = nn.Sequential(
            nn.Linear(NUM_SLOTS * DIM, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def logits(self, rows: Tensor) -> Tensor:
        """[B] of the rows of all slots, [B, slots, 1 + dim]."""
        bias, vectors = rows[..., 0], rows[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        deep: Tensor = self.deep(vectors.flatten(1))
        return bias.sum(1) + pairs + deep.squeeze(1)

    def model_fn(self, features: Any, mode: str) -> Spec:
        """Chance of a click."""
        logits = self.logits(self.emb(features).stack())
        if mode == "predict":
            return Spec(predictions=logits.sigmoid())
        return Spec(nn.functional.binary_cross_entropy_with_logits(logits, features["label"]))

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(model.parameters(), lr=1e-3)


@contextmanager
def filled_session(num_rows: int) -> Iterator[Session]:
    """A session that has trained every id of `ids_of_a_slot` in each slot."""
    torch.manual_seed(0)
    with Session(ServedDeepFm()) as session:
        ids_in_slot = ids_of_a_slot(num_rows)
        for first in range(0, ids_in_slot, _EXAMPLES):
            session.run(batch_of(torch.arange(first, min(first + _EXAMPLES, ids_in_slot))))
        yield session


def exported(session: Session, folder: Path) -> str:
    """Returns the folder of versions with one export of the session."""
    export_session(session, str(folder), example=batch_of(torch.arange(2)))
    return str(folder)


def batch_of(ids: Tensor) -> dict[str, Tensor]:
    """Returns a batch with the same ids in every slot."""
    return {**dict.fromkeys(NAMES, ids), "label": (ids % 2).float()}


def ids_of_a_slot(num_rows: int) -> int:
    """Returns n for ids 0 .. n - 1 of a slot, so that all slots together have about `num_rows` rows."""
    return max(1, num_rows // NUM_SLOTS)


def encoded_request(seed: int, num_rows: int, *, num_shared: int = 0, candidates: int = CANDIDATES) -> bytes:
    """Returns an ExampleBatch of random ids that have rows; its first columns may be SHARED ones."""
    random = np.random.default_rng(seed)
    batch = ExampleBatch(batch_size=candidates)
    for place, name in enumerate(NAMES):
        is_shared = place < num_shared
        kind = FeatureListType.SHARED if is_shared else FeatureListType.INDIVIDUAL
        column = batch.named_feature_list.add(name=name, type=kind)
        for each in random.integers(0, ids_of_a_slot(num_rows), 1 if is_shared else candidates).tolist():
            column.feature.add().fid_v2_list.value.append(each)
    return batch.SerializeToString()
