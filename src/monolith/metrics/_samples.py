"""The inputs of every metric: predictions, labels, weights; checked, flat, and in float64."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Samples(NamedTuple):
    """Rows that count, each a float64 tensor ``[n]`` on the metric's device."""

    predictions: Tensor
    labels: Tensor
    weights: Tensor
    positions: Tensor | None
    """int64 ``[n]``: where the rows stood in the batch; None if all of them count."""

    def select(self, values: Tensor) -> Tensor:
        """Returns the entries of `values` that belong to the rows that count."""
        return values if self.positions is None else values[self.positions]


def check_samples(
    subject: str, predictions: Tensor, labels: Tensor, weights: Tensor | None, device: torch.device
) -> Samples:
    """Returns predictions, labels and weights of one shape as flat float64 tensors, without the rows of weight 0.

    A row of weight 0 does not count, whatever it holds: give weight 0 to rows without a label.

    Raises:
        ValueError: Shapes differ, a weight is negative or not finite, or a prediction or label that counts is not
            finite.
    """
    predictions = _flat(subject, "predictions", predictions, device)
    labels = _flat(subject, "labels", labels, device)
    _require_length(subject, "labels", labels, predictions)
    if weights is None:
        checked = Samples(predictions, labels, torch.ones_like(predictions), None)
    else:
        weights = _flat(subject, "weights", weights, device)
        _require_length(subject, "weights", weights, predictions)
        refuse(subject, "weights must be finite and >= 0", weights, ~(torch.isfinite(weights) & (weights >= 0)))
        checked = _without_zero_weights(predictions, labels, weights)
    refuse(subject, "predictions must be finite", checked.predictions, ~torch.isfinite(checked.predictions))
    refuse(subject, "labels must be finite", checked.labels, ~torch.isfinite(checked.labels))
    return checked


def require_binary(subject: str, samples: Samples) -> None:
    """Raises if labels are other than 0 and 1."""
    wrong = (samples.labels != 0) & (samples.labels != 1)
    refuse(subject, "labels must be 0 or 1 (weight 0 leaves a row out)", samples.labels, wrong)


def require_probabilities(subject: str, samples: Samples) -> None:
    """Raises if predictions are outside [0, 1]."""
    wrong = (samples.predictions < 0) | (samples.predictions > 1)
    refuse(subject, "predictions must be in [0, 1] (sigmoid of the logits)", samples.predictions, wrong)


def refuse(subject: str, expected: str, values: Tensor, wrong: Tensor) -> None:
    """Raises a ValueError that names the first of the `values` marked as `wrong`, if there is one."""
    if bool(wrong.any()):
        first = int(wrong.to(torch.uint8).argmax())
        raise ValueError(f"{subject}: {expected}, got {values[first].item()!r} and {int(wrong.sum()) - 1} more such")


def _flat(subject: str, name: str, values: Tensor, device: torch.device) -> Tensor:
    if not isinstance(values, Tensor):
        raise TypeError(f"{subject}: {name} must be a tensor, got {type(values).__name__}; use torch.as_tensor")
    if values.dtype.is_complex:
        raise TypeError(f"{subject}: {name} must be real numbers, got {values.dtype}")
    return values.detach().reshape(-1).to(device=device, dtype=torch.float64)


def _require_length(subject: str, name: str, values: Tensor, predictions: Tensor) -> None:
    if len(values) != len(predictions):
        raise ValueError(f"{subject}: {name} must be as many as predictions, {len(predictions)}, got {len(values)}")


def _without_zero_weights(predictions: Tensor, labels: Tensor, weights: Tensor) -> Samples:
    if bool((weights != 0).all()):
        return Samples(predictions, labels, weights, None)
    positions = weights.nonzero().squeeze(1)
    return Samples(predictions[positions], labels[positions], weights[positions], positions)
