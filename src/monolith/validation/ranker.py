"""A click model for comparing data and tables without a task of one's own."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from monolith.config import Config, config, require_at_least, require_positive
from monolith.nn import Embeddings, Slice, Slot
from monolith.tables import NEVER_DAYS, Adagrad, SlidingHashFilter, Zeros
from monolith.train import Mode, Spec, Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@config
class Ranker(Config):
    """Factory of DeepFM tasks: a factorisation machine and a network over the same rows.

    >>> Ranker(ids=["user", "item"], expire_days={"item": 7})().p.name
    'RankerTask'
    """

    ids: Sequence[str]
    """Columns of ids, one or several for each example; each has rows of its own."""
    numbers: Sequence[str] = ()
    """Columns of numbers; the network sees ``log(1 + x)`` of them, and 0 for one that is missing or negative."""
    label: str = "label"
    """Column of 0 and 1."""
    dim: int = 8
    """Dimension of the vectors; a row has a bias in addition."""
    hidden: int = 32
    """Width of the network."""
    learning_rate: float = 0.1
    """Learning rate of the rows (Adagrad)."""
    dense_learning_rate: float = 1e-3
    """Learning rate of the network (Adam)."""
    min_counts: Mapping[str, int] = field(default_factory=dict)
    """Column -> number of occurrences of an id before it gets a row; without an entry, ids get one immediately."""
    expire_days: Mapping[str, int] = field(default_factory=dict)
    """Column -> days without an update after which a row may be removed; without an entry, rows stay."""
    shared: bool = False
    """Whether all columns use the rows of the first, as for ids hashed into one array (`HashedIds`)."""
    filter_capacity: int = 100_000
    """Number of ids without a row that the admission filter tracks, if some column has a `min_counts`."""
    seed: int = 0
    """Seed of the initial weights of rows."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(self.ids))
        object.__setattr__(self, "numbers", tuple(self.numbers))
        require_at_least(self, 1, "dim", "hidden", "filter_capacity")
        require_positive(self, "learning_rate", "dense_learning_rate")
        if not self.ids:
            raise ValueError("Ranker: ids must name at least one column, got none")
        for name in ("min_counts", "expire_days"):
            unknown = sorted(set(getattr(self, name)) - set(self.ids))
            if unknown:
                raise ValueError(f"Ranker: {name} must name columns of ids, {', '.join(self.ids)}, got {unknown[0]!r}")
            ignored = sorted(set(getattr(self, name)) - {self.ids[0]})
            if self.shared and ignored:
                raise ValueError(
                    f"Ranker: with shared=True all columns use the rows of {self.ids[0]!r}, so {name} must name only"
                    f" {self.ids[0]!r}, got {ignored[0]!r}; write {name}={{{self.ids[0]!r}: ...}}, or shared=False"
                )

    @property
    def bytes_per_bare_row(self) -> int:
        """Bytes of a row in a plain array: weights and Adagrad state, without keys and index."""
        return 2 * 4 * (1 + self.dim)

    def __call__(self) -> Task:
        """Returns a task whose model is not built yet."""
        return RankerTask(self)


class RankerTask(Task):
    """Task created by a `Ranker`."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self._ranker = ranker

    def build(self) -> None:
        """Builds the rows of all columns of ids, and the network."""
        ranker = self._ranker
        row = [Slice(1, initializer=Zeros()), Slice(ranker.dim)]
        own = ranker.ids[:1] if ranker.shared else ranker.ids
        slots = {name: Slot(shares=ranker.ids[0], combiner="mean") for name in ranker.ids}
        slots |= {
            name: Slot(
                slices=row,
                combiner="mean",
                min_count=ranker.min_counts.get(name, 0),
                expire_days=ranker.expire_days.get(name, NEVER_DAYS),
            )
            for name in own
        }
        rule = Adagrad(learning_rate=ranker.learning_rate, initial_accumulator_value=1e-8)
        admission = SlidingHashFilter(capacity=ranker.filter_capacity)
        self.rows = Embeddings(slots, rule, seed=ranker.seed, admission=admission)
        width = len(ranker.ids) * ranker.dim + len(ranker.numbers)
        self.deep = nn.Sequential(nn.Linear(width, ranker.hidden), nn.ReLU(), nn.Linear(ranker.hidden, 1))

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:  # noqa: ARG002 - all dense weights are in `deep`
        """Returns Adam for the network."""
        return torch.optim.Adam(self.deep.parameters(), lr=self._ranker.dense_learning_rate)

    def model_fn(self, features: Any, mode: Mode) -> Spec:  # noqa: ARG002 - the same in all modes
        """Predicts the probability of a click."""
        rows = self.rows(features).stack()  # [B, ids, 1 + dim]
        bias, vectors = rows[..., 0], rows[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        logits: Tensor = bias.sum(1) + pairs + self.deep(self._inputs(vectors, features)).squeeze(1)
        clicks = features[self._ranker.label].reshape(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        return Spec(loss, predictions=logits.sigmoid(), label=clicks)

    def _inputs(self, vectors: Tensor, features: Any) -> Tensor:
        numbers = [features[name].reshape(-1, 1) for name in self._ranker.numbers]
        flat = vectors.flatten(1)
        if not numbers:
            return flat
        return torch.cat([flat, torch.cat(numbers, 1).nan_to_num(0.0).clamp_min(0.0).log1p()], 1)
