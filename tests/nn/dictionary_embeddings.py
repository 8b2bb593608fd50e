"""Embeddings the slow way: a dictionary of rows, one autograd leaf per row, combiners as loops over ids.

Written from the rules, not from the module: what `Embeddings` is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

START, ACCUMULATOR = 0.25, 0.5
"""First weight and first accumulator of every row."""

Key = tuple[str, int]
Lists = Mapping[str, list[list[int]]]


@dataclass(frozen=True)
class Column:
    """A slot: rows of the slot `owner`, combined by sum, mean, sqrtn or first_n."""

    owner: str
    dim: int
    combiner: str
    n: int = 0


@dataclass
class DictionaryEmbeddings:
    """Adagrad with a constant start."""

    columns: dict[str, Column]
    rate: float
    rows: dict[Key, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    leaves: list[dict[Key, Tensor]] = field(default_factory=list)

    def forward(self, batch: Lists) -> dict[str, Tensor]:
        self.leaves.append({})
        return {name: self._column(column, batch[name]) for name, column in self.columns.items()}

    def step(self) -> None:
        """Every id of every pass takes one step with the sum of its gradients over the passes."""
        gradients: dict[Key, np.ndarray] = {}
        for leaves in self.leaves:
            for key, leaf in leaves.items():
                found = np.zeros(leaf.shape, np.float32) if leaf.grad is None else leaf.grad.numpy()
                gradients[key] = gradients[key] + found if key in gradients else found
        for key, gradient in gradients.items():
            weights, norm = self.rows.get(key, (self._full(gradient, START), self._full(gradient, ACCUMULATOR)))
            norm = norm + gradient * gradient
            self.rows[key] = weights - (np.float32(self.rate) / np.sqrt(norm)) * gradient, norm
        self.leaves.clear()

    def row(self, owner: str, key: int, dim: int) -> np.ndarray:
        return self.rows.get((owner, key), (np.zeros(dim, np.float32),))[0]

    def _column(self, column: Column, lists: list[list[int]]) -> Tensor:
        return torch.stack([self._example(column, ids) for ids in lists])

    def _example(self, column: Column, ids: list[int]) -> Tensor:
        rows = [self._leaf(column, key) for key in ids]
        zeros = [torch.zeros(column.dim)]
        if column.combiner == "first_n":
            return torch.stack((rows + zeros * column.n)[: column.n])
        total = torch.stack(zeros + rows).sum(0)
        divisor = {"mean": float(len(rows)), "sqrtn": len(rows) ** 0.5}.get(column.combiner, 1.0)
        return total / divisor if rows else total

    def _leaf(self, column: Column, key: int) -> Tensor:
        leaves = self.leaves[-1]
        if (column.owner, key) not in leaves:
            row = torch.from_numpy(self.row(column.owner, key, column.dim).copy())
            leaves[column.owner, key] = row.requires_grad_()
        return leaves[column.owner, key]

    @staticmethod
    def _full(like: np.ndarray, value: float) -> np.ndarray:
        return np.full(like.shape, value, np.float32)
