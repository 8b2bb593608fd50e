"""A ranking loss chosen by key, or several of them weighted."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice
from monolith.nn.losses.ranking import RANKING_LOSSES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.nn.losses._reduction import Reduction
    from monolith.nn.losses.lambda_weight import LambdaWeight


class RankingLoss(nn.Module):
    """``sum over keys of weight_key * loss_key``.

    Args:
        losses: A key of `RANKING_LOSSES`, or keys with their weights.
        lambda_weight: For those of the losses that take one; rejected if none does.
        reduction: Of each loss, "mean" or "sum".

    >>> loss = RankingLoss({"softmax_loss": 1.0, "mean_squared_loss": 0.1})
    >>> loss(labels=torch.tensor([[1.0, 0.0, -1.0]]), logits=torch.zeros(1, 3))
    tensor(0.7431)
    """

    def __init__(
        self,
        losses: str | Mapping[str, float],
        *,
        lambda_weight: LambdaWeight | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.losses = {losses: 1.0} if isinstance(losses, str) else dict(losses)
        if not self.losses:
            raise ValueError(f"RankingLoss: needs at least one of {', '.join(RANKING_LOSSES)}, got none")
        for key in self.losses:
            require_choice("RankingLoss", "key", key, list(RANKING_LOSSES))
        require_choice("RankingLoss", "reduction", reduction, ("mean", "sum"))
        self.reduction = reduction
        self.lambda_weight = lambda_weight
        self._takes_lambda = {
            key for key in self.losses if "lambda_weight" in inspect.signature(RANKING_LOSSES[key]).parameters
        }
        if lambda_weight is not None and not self._takes_lambda:
            raise ValueError(f"RankingLoss: lambda_weight has no meaning for {', '.join(self.losses)}")

    def forward(self, *, labels: Tensor, logits: Tensor, weights: Tensor | None = None) -> Tensor:
        """Returns the weighted sum, a scalar, for labels and logits ``[Q, L]``."""
        parts = []
        for key, factor in self.losses.items():
            extra = {"lambda_weight": self.lambda_weight} if key in self._takes_lambda else {}
            loss = RANKING_LOSSES[key](labels=labels, logits=logits, weights=weights, reduction=self.reduction, **extra)
            parts.append(factor * loss)
        return torch.stack(parts).sum()
