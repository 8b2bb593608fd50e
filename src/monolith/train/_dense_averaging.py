"""Dense weights of a synchronous run: each rank has all of them, and moves them by the mean gradient of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.train._dense_step import LocalDense
from monolith.train.rank_part import RankPart, RankUpdate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.nn import Parameter
    from torch.optim import Optimizer

    from monolith.train._dense_step import StepGradients

__all__ = ["DenseAveraged"]


class DenseAveraged(LocalDense):
    """Dense weights that every rank updates by its own optimizers, with averaged gradients.

    A weight that the batches of some ranks did not use has the gradients of the others; one that no rank has used has
    none, so that optimizers skip it as they do in one process.

    Args:
        optimizers: Optimizers of the weights.
        part: The run.
    """

    def __init__(self, optimizers: Sequence[Optimizer], part: RankPart) -> None:
        super().__init__(optimizers)
        self._part = part

    @property
    def in_step(self) -> bool:
        """Returns True: all ranks make the same steps."""
        return True

    def combine(self, gradients: StepGradients) -> None:
        """Averages the gradients over all ranks; a step that any rank refuses is refused by all."""
        num_pushes = gradients.num_pushes if self._part.shares_rows else 0  # pushes to servers are not followed
        update = RankUpdate(gradients.reached, num_pushes, has_dense=bool(gradients.weights))
        self._part.update(update, gradients.weights, gradients.why_refused())

    def follow(self, weights: Sequence[Parameter]) -> RankUpdate | None:
        """Makes a step without a batch, with the mean gradient of the others; None if no rank has a batch."""
        return self._part.follow_step(weights)
