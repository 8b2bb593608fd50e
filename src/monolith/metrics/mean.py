"""Metrics that are weighted means or ratios of sums: log loss, normalised entropy, squared error, calibration."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
