"""Means over several steps: of an evaluation, or of the last steps of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.metrics import BinnedAUC, MeanSquaredError

if TYPE_CHECKING:
    from monolith.hook import LastStep

__all__ = ["Evaluation"]


class Evaluation:
    """Accumulates the results of steps: loss by example, and an AUC for each head with labels 0 and 1.

    Args:
        with_error: Whether to compute the mean squared error of heads with other labels.
    """

    def __init__(self, *, with_error: bool = False) -> None:
        self._with_error = with_error
        self._errors: dict[str, MeanSquaredError] = {}
        self._loss = 0.0
        self._has_loss = False
        self._examples = 0
        self._weight = 0
        self._aucs: dict[str, BinnedAUC] = {}
        self._not_binary: set[str] = set()

    def add(self, result: LastStep | None) -> None:
        """Adds one batch."""
        if result is None:
            return
        self._examples += result.num_examples
        if result.loss is not None:
            self._has_loss = True
            weight = result.num_examples or 1
            self._loss += float(result.loss) * weight
            self._weight += weight
        for name, (predictions, label) in _heads(result).items():
            self._add_head(name, predictions, label)

    def means(self) -> dict[str, float]:
        """Returns name -> value so far."""
        found = {name: auc.compute() for name, auc in self._aucs.items() if name not in self._not_binary}
        found |= {name: error.compute() for name, error in self._errors.items()}
        if self._has_loss:
            found["loss"] = self._loss / self._weight
        return found | {"examples": self._examples}

    def _add_head(self, name: str, predictions: Tensor, label: Tensor) -> None:
        labels, scores = label.flatten().to(torch.float32), predictions.flatten().to(torch.float32)
        if name not in self._not_binary and _are_clicks(scores, labels):
            self._aucs.setdefault(name, BinnedAUC()).update(scores, labels)
            return
        self._not_binary.add(name)
        if self._with_error and labels.shape == scores.shape:
            self._errors.setdefault(name.removesuffix("auc") + "mse", MeanSquaredError()).update(scores, labels)


def _are_clicks(scores: Tensor, labels: Tensor) -> bool:
    if labels.shape != scores.shape or not bool(((labels == 0) | (labels == 1)).all()):
        return False
    return bool(((scores >= 0) & (scores <= 1)).all())


def _heads(result: LastStep) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns name of the metric -> predictions and label."""
    predictions, label = result.predictions, result.label
    if isinstance(predictions, Tensor) and isinstance(label, Tensor):
        return {"auc": (predictions, label)}
    if isinstance(predictions, Mapping) and isinstance(label, Mapping):
        return {f"{name}_auc": (predictions[name], label[name]) for name in predictions if _is_head(name, result)}
    return {}


def _is_head(name: Any, result: LastStep) -> bool:
    return isinstance(result.predictions[name], Tensor) and isinstance(result.label.get(name), Tensor)
