"""Calibration by size of the prediction: the curve and its distance from the diagonal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.metrics.metric import SumMetric, check_samples, ratio, require_binary, require_probabilities

if TYPE_CHECKING:
    from torch import Tensor


class CalibrationCurve(NamedTuple):
    """One entry per bin, float64 ``[num_bins]``; the means of an empty bin are NaN."""

    mean_prediction: Tensor
    mean_label: Tensor
    weight: Tensor


class CalibrationError(SumMetric):
    """Expected calibration error: ``sum over bins b of (W_b / W) abs(mean prediction in b - mean label in b)``.

    Bins are of equal width over [0, 1]; p is in bin ``min(floor(p num_bins), num_bins - 1)``. :meth:`curve` gives the
    reliability diagram. The state has the sums of each bin.

    Args:
        num_bins: Number of bins.
        device: Device of the state.
    """

    _state_name = "bins"

    def __init__(self, num_bins: int = 10, *, device: torch.device | str = "cpu") -> None:
        if num_bins < 1:
            raise ValueError(f"CalibrationError: num_bins must be >= 1, got {num_bins}")
        self.num_bins = num_bins
        self._shape = (3, num_bins)
        super().__init__(device=device)

    def update(self, predictions: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Adds probabilities, labels 0 or 1 (all of one length) and weights >= 0."""
        samples = check_samples("CalibrationError", predictions, labels, weights, self.device)
        require_binary("CalibrationError", samples)
        require_probabilities("CalibrationError", samples)
        bins = (samples.predictions * self.num_bins).long().clamp_max(self.num_bins - 1)
        weighted = (samples.weights * samples.predictions, samples.weights * samples.labels, samples.weights)
        sums = [torch.bincount(bins, weights=values, minlength=self.num_bins) for values in weighted]
        self._sums = self._sums + torch.stack(sums)

    def curve(self) -> CalibrationCurve:
        """Returns mean prediction, mean label and weight of each bin."""
        predicted, observed, weight = self._sums.unbind(0)
        return CalibrationCurve(predicted / weight, observed / weight, weight.clone())

    def compute(self) -> float:
        """Returns the error; NaN without data."""
        predicted, observed, weight = self._sums.unbind(0)
        return ratio(float((predicted - observed).abs().sum()), float(weight.sum()))

    def _settings(self) -> dict[str, object]:
        return {"num_bins": self.num_bins}
