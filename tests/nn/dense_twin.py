"""A small model with its rows in a table of torch, and the same model with rows of a store."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import monolith as ml

RATE = 0.5
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


class Dense(nn.Module):
    """The rows as a dense table of torch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tower = nn.Linear(2, 1)
        self.table = nn.Embedding(8, 2)
        nn.init.zeros_(self.table.weight)

    def rows(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        return found

    def weights(self) -> Tensor:
        return self.table.weight.detach().cpu()

    def loss(self, ids: Tensor) -> Tensor:
        loss: Tensor = (self.tower(self.rows(ids)) - 3).square().sum()
        return loss

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


class Sparse(Dense):
    """The same model with rows of a store."""

    def __init__(self) -> None:
        super().__init__()
        del self.table
        slots = {"user": ml.Slot(2, initializer=ml.initializers.Zeros())}
        self.emb = ml.Embeddings(slots, ml.row_optimizers.Sgd(learning_rate=RATE))

    def rows(self, ids: Tensor) -> Tensor:
        found: Tensor = self.emb({"user": ids.cpu()})["user"]
        return found.to(ids.device)

    def weights(self) -> Tensor:
        return self.emb.lookup("user", torch.arange(8)).cpu()

    def optimizer(self) -> torch.optim.Optimizer:
        return self.emb.optimizer(torch.optim.SGD(self.tower.parameters(), lr=RATE))


def parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def differentiate(loss: Tensor, **options: bool) -> None:
    """`loss.backward()` with types."""
    loss.backward(**options)  # type: ignore[no-untyped-call]  # torch gives it no types
