"""A small model with rows and weights, as a user of torch would write it."""

from __future__ import annotations

import torch
from torch import nn

import monolith as ml

IDS = torch.arange(24)


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        slots = {"user": ml.Slot(3, min_count=1), "item": ml.Slot(2)}
        admission = ml.filters.SlidingHashFilter(capacity=1000)
        self.emb = ml.Embeddings(slots, ml.row_optimizers.Adagrad(learning_rate=0.3), admission=admission)
        self.tower = nn.Linear(5, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.tower(self.emb({"user": ids % 5, "item": ids}, time=10**9).concat())
        return logits

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (self(ids) - 1).square().mean()
        return loss


def train(model: Ranker, adam: torch.optim.Optimizer, steps: int, *, stride: int) -> None:
    for step in range(steps):
        adam.zero_grad()
        model.loss(IDS + stride * step).backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        adam.step()
        model.emb.step()


def by_hand(steps: int, *, stride: int = 1) -> Ranker:
    """What the plain loop makes, with which every framework has to agree."""
    model = Ranker()
    train(model, torch.optim.Adam(model.tower.parameters(), lr=0.1), steps, stride=stride)
    return model


@torch.no_grad()
def predictions(model: Ranker) -> list[float]:
    """What the model says, by which two models are compared bit for bit."""
    found: list[float] = model(IDS).flatten().tolist()
    assert model.emb.num_rows > 0
    return found
