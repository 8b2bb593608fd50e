"""The probability that a click is scored above a non-click.

``AUC = sum over pairs (i, j) of w_i w_j ([p_i > p_j] + [p_i = p_j] / 2) / (W_1 W_0)``, i over label 1 and j over label
0: the area under the ROC curve. NaN while one of the classes was not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from monolith.metrics._samples import check_samples, refuse, require_binary
from monolith.metrics._score_store import ScoreStore, require_one_length
from monolith.metrics.metric import Metric, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


def area_under_roc(positive: Tensor, negative: Tensor) -> float:
    """Returns the AUC from the weights of both classes at distinct scores in ascending order."""
    below = negative.cumsum(0) - negative
    wins = (positive * (below + 0.5 * negative)).sum()
    return ratio(ratio(float(wins), float(positive.sum())), float(negative.sum()))


class BinnedAUC(Metric):
    """AUC in constant memory: scores are counted in bins of equal width, and equal bins count as ties.

    The error against the exact AUC is at most :meth:`error_bound`, half the share of pairs in one bin; with the
    default 65,536 bins it is far below what matters unless all predictions crowd in a few of them.

    Args:
        num_bins: Number of bins.
        low: Lower end of the scores.
        high: Upper end of the scores; scores outside are rejected.
        device: Device of the state.

    >>> metric = BinnedAUC()
    >>> metric.update(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()
    0.75
    """

    _counts: Tensor

    def __init__(
        self, num_bins: int = 1 << 16, *, low: float = 0.0, high: float = 1.0, device: torch.device | str = "cpu"
    ) -> None:
        if num_bins < 2:
            raise ValueError(f"BinnedAUC: num_bins must be >= 2, got {num_bins}")
        if not low < high:
            raise ValueError(f"BinnedAUC: low must be below high, got {low!r} and {high!r}")
        self.num_bins = num_bins
        self.low = low
        self.high = high
        super().__init__(device=device)

    def update(self, predictions: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Adds scores in [low, high], labels 0 or 1 (all of one length) and weights >= 0."""
        samples = check_samples("BinnedAUC", predictions, labels, weights, self.device)
        require_binary("BinnedAUC", samples)
        scores = samples.predictions
        outside = (scores < self.low) | (scores > self.high)
        refuse("BinnedAUC", f"predictions must be in [{self.low:g}, {self.high:g}]", scores, outside)
        bin_of = ((scores - self.low) * (self.num_bins / (self.high - self.low))).long()
        bin_of = bin_of.clamp_max(self.num_bins - 1) + self.num_bins * samples.labels.long()
        counts = torch.bincount(bin_of, weights=samples.weights, minlength=2 * self.num_bins)
        self._counts = self._counts + counts.reshape(2, self.num_bins)

    def compute(self) -> float:
        """Returns the AUC; NaN while one of the classes was not seen."""
        return area_under_roc(self._counts[1], self._counts[0])

    def error_bound(self) -> float:
        """Returns the largest possible distance to the exact AUC of what was seen; NaN where the AUC is."""
        negative, positive = self._counts
        in_one_bin = float((positive * negative).sum())
        return ratio(ratio(0.5 * in_one_bin, float(positive.sum())), float(negative.sum()))

    def reset(self) -> None:
        """Clears the state."""
        self._counts = torch.zeros(2, self.num_bins, dtype=torch.float64, device=self.device)

    def state(self) -> dict[str, Tensor]:
        """Returns weights by label and bin; those of several workers may be added up, as by all-reduce."""
        return {"counts": self._counts.clone()}

    def _set_state(self, state: Mapping[str, Tensor]) -> None:
        self._counts = state["counts"]

    def _add_state(self, state: Mapping[str, Tensor]) -> None:
        self._counts = self._counts + state["counts"]

    def _settings(self) -> dict[str, object]:
        return {"num_bins": self.num_bins, "low": self.low, "high": self.high}


class ExactAUC(Metric):
    """AUC without rounding of scores: keeps the weight of both classes at every distinct score.

    Memory grows with the number of distinct scores, 24 bytes each. Scores are any finite numbers.

    >>> metric = ExactAUC()
    >>> metric.update(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()
    0.75
    """

    def update(self, predictions: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Adds scores, labels 0 or 1 (all of one length) and weights >= 0."""
        samples = check_samples("ExactAUC", predictions, labels, weights, self.device)
        require_binary("ExactAUC", samples)
        positive = samples.weights * samples.labels
        self._rows.add(samples.predictions.clone(), positive, samples.weights - positive)

    def compute(self) -> float:
        """Returns the AUC; NaN while one of the classes was not seen."""
        _, positive, negative = self._rows.rows()
        return area_under_roc(positive, negative)

    def reset(self) -> None:
        """Clears the state."""
        self._rows = ScoreStore((torch.float64,), self.device)

    def state(self) -> dict[str, Tensor]:
        """Returns distinct scores, ascending, with the weight of label 1 and of label 0 at each."""
        names = ("scores", "positive", "negative")
        return {name: column.clone() for name, column in zip(names, self._rows.rows(), strict=True)}

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        require_one_length("ExactAUC", state)

    def _set_state(self, state: Mapping[str, Tensor]) -> None:
        self.reset()
        self._add_state(state)

    def _add_state(self, state: Mapping[str, Tensor]) -> None:
        self._rows.add(state["scores"], state["positive"], state["negative"])
