"""Calibration by size of the prediction: the curve and its distance from the diagonal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.metrics.metric import Metric, check_samples, ratio, require_binary, require_probabilities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class CalibrationCurve(NamedTuple):
    """One entry per bin, float64 ``[num_bins]``; the means of an empty bin are NaN."""

    mean_prediction: Tensor
    mean_label: Tensor
    weight: Tensor


class CalibrationError(Metric):
    """Expected calibration error: ``sum over bins b of (W_b / W) abs(mean prediction in b - mean label in b)``.

    Bins are of equal width over [0, 1]; p is in bin ``min(floor(p num_bins), num_bins - 1)``. :meth:`curve` gives the
    reliability diagram.

    Args:
        num_bins: Number of bins.
        device: Device of the state.
    """

    _bins: Tensor

    def __init__(self, num_bins: int = 10, *, device: torch.device | str = "cpu") -> None:
        if num_bins < 1:
            raise ValueError(f"CalibrationError: num_bins must be >= 1, got {num_bins}")
        self.num_bins = num_bins
        super().__init__(device=device)

    def update(self, predictions: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Adds probabilities, labels 0 or 1 (all of one length) and weights >= 0."""
        samples = check_samples("CalibrationError", predictions, labels, weights, self.device)
        require_binary("CalibrationError", samples)
        require_probabilities("CalibrationError", samples)
        bins = (samples.predictions * self.num_bins).long().clamp_max(self.num_bins - 1)
        weighted = (samples.weights * samples.predictions, samples.weights * samples.labels, samples.weights)
        sums = [torch.bincount(bins, weights=values, minlength=self.num_bins) for values in weighted]
        self._bins = self._bins + torch.stack(sums)

    def curve(self) -> CalibrationCurve:
        """Returns mean prediction, mean label and weight of each bin."""
        predicted, observed, weight = self._bins.unbind(0)
        return CalibrationCurve(predicted / weight, observed / weight, weight.clone())

    def compute(self) -> float:
        """Returns the error; NaN without data."""
        predicted, observed, weight = self._bins.unbind(0)
        return ratio(float((predicted - observed).abs().sum()), float(weight.sum()))

    def reset(self) -> None:
        """Clears the state."""
        self._bins = torch.zeros(3, self.num_bins, dtype=torch.float64, device=self.device)

    def state(self) -> dict[str, Tensor]:
        """Returns sums per bin; those of several workers may be added up, as by all-reduce."""
        return {"bins": self._bins.clone()}

    def _set_state(self, state: Mapping[str, Tensor]) -> None:
        self._bins = state["bins"]

    def _add_state(self, state: Mapping[str, Tensor]) -> None:
        self._bins = self._bins + state["bins"]

    def _settings(self) -> dict[str, object]:
        return {"num_bins": self.num_bins}
