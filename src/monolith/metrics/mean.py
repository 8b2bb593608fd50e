"""Metrics that are weighted means or ratios of sums: log loss, normalised entropy, squared error, calibration.

The calibration by size of the prediction has a curve, and an error: its distance from the diagonal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.metrics.metric import SumMetric, check_samples, ratio, require_binary, require_probabilities

if TYPE_CHECKING:
    from torch import Tensor


def cross_entropy(predictions: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """``-(y ln p + (1 - y) ln(1 - p))`` with p kept in ``[epsilon, 1 - epsilon]``."""
    p = predictions.clamp(epsilon, 1.0 - epsilon)
    return -(labels * p.log() + (1.0 - labels) * torch.log1p(-p))


def precision_of(predictions: Tensor) -> float:
    """Returns the distance from 1 to the next number of the predictions' type: the precision of p."""
    dtype = predictions.dtype if predictions.dtype.is_floating_point else torch.float64
    return torch.finfo(dtype).eps


class LogLoss(SumMetric):
    """``sum of w l / sum of w`` with ``l = -(y ln p + (1 - y) ln(1 - p))``; the cross entropy of clicks.

    p is kept away from 0 and 1 by the precision of its type, 1.2e-7 for float32, so a certain and wrong prediction
    costs about 16 and not infinity.

    >>> metric = LogLoss()
    >>> metric.update(torch.tensor([0.5, 0.5]), torch.tensor([0, 1]))
    >>> round(metric.compute(), 4)
    0.6931
    """

    _shape = (2,)

    def update(self, predictions: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Adds probabilities, labels 0 or 1 (all of one length) and weights >= 0."""
        samples = check_samples("LogLoss", predictions, labels, weights, self.device)
        require_binary("LogLoss", samples)
        require_probabilities("LogLoss", samples)
        losses = cross_entropy(samples.predictions, samples.labels, precision_of(predictions))
        self._sums = self._sums + torch.stack([(samples.weights * losses).sum(), samples.weights.sum()])

    def compute(self) -> float:
        """Returns the mean loss; NaN without data."""
        total, weight = self._sums.tolist()
        return ratio(total, weight)


class NormalizedEntropy(SumMetric):
    """The log loss divided by that of always predicting the share of clicks: below 1 is better than the share.

    ``NE = (sum of w l / sum of w) / H(c)``, ``H(c) = -(c ln c + (1 - c) ln(1 - c))``, c the weighted share of label 1.
    Unlike the log loss it can be compared between days whose click rates differ. Reference: He et al., ADKDD 2014.
    """

    _shape = (3,)

    def update(self, predictions: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Adds probabilities, labels 0 or 1 (all of one length) and weights >= 0."""
        samples = check_samples("NormalizedEntropy", predictions, labels, weights, self.device)
        require_binary("NormalizedEntropy", samples)
        require_probabilities("NormalizedEntropy", samples)
        losses = cross_entropy(samples.predictions, samples.labels, precision_of(predictions))
        sums = [(samples.weights * losses).sum(), samples.weights.sum(), (samples.weights * samples.labels).sum()]
        self._sums = self._sums + torch.stack(sums)

    def compute(self) -> float:
        """Returns the ratio; NaN without data and for labels of one class."""
        loss, weight, clicks = self._sums.tolist()
        share = ratio(clicks, weight)
        if not 0 < share < 1:
            return math.nan
        entropy = -(share * math.log(share) + (1.0 - share) * math.log1p(-share))
        return ratio(loss, weight) / entropy


class MeanSquaredError(SumMetric):
    """``sum of w (p - y)^2 / sum of w``; predictions and labels are any finite numbers."""

    _shape = (2,)

    def update(self, predictions: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Adds predictions, labels (all of one length) and weights >= 0."""
        samples = check_samples("MeanSquaredError", predictions, labels, weights, self.device)
        errors = (samples.predictions - samples.labels).square()
        self._sums = self._sums + torch.stack([(samples.weights * errors).sum(), samples.weights.sum()])

    def compute(self) -> float:
        """Returns the mean; NaN without data."""
        total, weight = self._sums.tolist()
        return ratio(total, weight)


class Calibration(SumMetric):
    """``sum of w p / sum of w y``: predicted clicks per click; 1 is right, 1.1 promises 10 % too many.

    >>> metric = Calibration()
    >>> metric.update(torch.tensor([0.5, 0.75]), torch.tensor([0, 1]))
    >>> metric.compute()
    1.25
    """

    _shape = (2,)

    def update(self, predictions: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Adds predictions, labels (all of one length; any finite numbers) and weights >= 0."""
        samples = check_samples("Calibration", predictions, labels, weights, self.device)
        predicted, observed = samples.weights * samples.predictions, samples.weights * samples.labels
        self._sums = self._sums + torch.stack([predicted.sum(), observed.sum()])

    def compute(self) -> float:
        """Returns the ratio; NaN when no click was seen."""
        predicted, observed = self._sums.tolist()
        return ratio(predicted, observed)


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
