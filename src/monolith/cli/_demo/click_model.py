"""The model that all contestants share: a factorisation machine with a small network over the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from monolith.cli._demo.stages import BACKWARD, PREDICT, UPDATE
from monolith.nn import Embeddings, Slice, Slot
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Adagrad

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.tables.store import Applied
    from monolith.tensors import Ragged

DIM = 16
"""Dimension of the vectors; a row has a bias, too."""
BYTES_PER_BARE_ROW = 2 * 4 * (1 + DIM)
"""Of an array: weights and Adagrad's sums, no keys, no index."""
ROW = (Slice(1, initializer=Zeros()), Slice(DIM))


class ClickModel(nn.Module):
    """Logits of clicks from the ids of four slots.

    Args:
        slots: Name -> slot of `ROW` slices.
        seed: Of the first weights.
    """

    def __init__(self, slots: Mapping[str, Slot], *, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.deep = nn.Sequential(nn.Linear(len(slots) * DIM, 32), nn.ReLU(), nn.Linear(32, 1))
        # The filter is as small as filters get: it has to remember some days of visitors.
        self.embeddings = Embeddings(
            slots,
            Adagrad(learning_rate=0.2, initial_accumulator_value=1e-8),
            seed=seed,
            admission=SlidingHashFilter(capacity=100_000),
        )
        self._dense_optimizer = torch.optim.Adam(self.deep.parameters(), lr=1e-3)

    def forward(self, ids: Mapping[str, Tensor | Ragged], time: Tensor | None = None) -> Tensor:
        """Logits [B]; `time` int64 [B] is when the examples were seen."""
        rows = self.embeddings(ids, time=time).stack()  # [B, slots, 1 + DIM]
        bias, vectors = rows[..., 0], rows[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        logits: Tensor = bias.sum(1) + pairs + self.deep(vectors.flatten(1)).squeeze(1)
        return logits

    def learn(
        self,
        ids: Mapping[str, Tensor | Ragged],
        clicks: Tensor,
        time: Tensor | None,
        *,
        stage_ends: Callable[[str], None] = lambda _: None,
    ) -> tuple[Tensor, Applied]:
        """Predicts, then makes one step from what was predicted; returns the prediction, which saw no click of it."""
        logits = self(ids, time)
        stage_ends(PREDICT)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        self._dense_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        stage_ends(BACKWARD)
        self._dense_optimizer.step()
        applied = self.embeddings.step()
        stage_ends(UPDATE)
        return logits.detach(), applied

    def take_over(self, other: ClickModel) -> None:
        """Becomes an exact copy of a model that was built alike: weights, rows, and what the optimizers remember."""
        self.load_state_dict(other.state_dict())
