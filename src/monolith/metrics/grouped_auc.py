"""AUC inside groups, usually users: is each user's list in order?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from monolith.metrics._samples import check_samples, require_binary, require_probabilities
from monolith.metrics._score_store import ScoreStore, require_one_length, run_starts
from monolith.metrics.metric import Metric, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_GROUP_WEIGHTS = ("samples", "clicks", "equal")


class GroupAUCs(NamedTuple):
    """One entry per group that has both labels, by ascending group."""

    groups: Tensor
    """int64 ``[G]``."""
    aucs: Tensor
    """float64 ``[G]``."""
    weights: Tensor
    """float64 ``[G]``: weight of the group in the mean."""


class GroupedAUC(Metric):
    """``GAUC = sum over groups g of W_g AUC_g / sum of W_g``, over groups that have both labels.

    Groups of one label have no AUC and are skipped. The data of a group may come in any number of batches and from any
    number of workers. Keeps the weights of both labels for every distinct (group, score), 32 bytes each.

    Reference: Zhu et al., Optimized Cost per Click, KDD 2017.

    Args:
        group_weight: W_g: "samples" (sum of the weights in g), "clicks" (sum of the weights of label 1), or "equal"
            (1).
        num_bins: Round scores, which must then be in [0, 1], into this many bins of equal width, so that memory
            is bounded by groups times bins. None: exact.
        device: Device of the state.

    >>> metric = GroupedAUC()
    >>> users = torch.tensor([7, 7, 8, 8, 9])
    >>> metric.update(torch.tensor([0.1, 0.9, 0.8, 0.2, 0.5]), torch.tensor([0, 1, 0, 1, 1]), users)
    >>> metric.compute()
    0.5
    """

    def __init__(
        self,
        *,
        group_weight: Literal["samples", "clicks", "equal"] = "samples",
        num_bins: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if group_weight not in _GROUP_WEIGHTS:
            expected = ", ".join(map(repr, _GROUP_WEIGHTS))
            raise ValueError(f"GroupedAUC: group_weight must be one of {expected}, got {group_weight!r}")
        if num_bins is not None and num_bins < 2:
            raise ValueError(f"GroupedAUC: num_bins must be >= 2 or None, got {num_bins}")
        self.group_weight = group_weight
        self.num_bins = num_bins
        super().__init__(device=device)

    def update(self, predictions: Tensor, labels: Tensor, groups: Tensor, weights: Tensor | None = None) -> None:
        """Adds scores, labels 0 or 1, group ids (int64; all of one length) and weights >= 0."""
        samples = check_samples("GroupedAUC", predictions, labels, weights, self.device)
        require_binary("GroupedAUC", samples)
        if groups.dtype.is_floating_point or groups.dtype.is_complex:
            raise TypeError(f"GroupedAUC: groups must be integers, got {groups.dtype}")
        if groups.numel() != predictions.numel():
            raise ValueError(
                f"GroupedAUC: groups must be as many as predictions, {predictions.numel()}, got {groups.numel()}"
            )
        ids = samples.select(groups.detach().reshape(-1).to(device=self.device, dtype=torch.int64, copy=True))
        scores = samples.predictions.clone()
        if self.num_bins is not None:
            require_probabilities("GroupedAUC", samples)
            scores = (scores * self.num_bins).floor().clamp_max(self.num_bins - 1)
        positive = samples.weights * samples.labels
        self._rows.add(ids, scores, positive, samples.weights - positive)

    def per_group(self) -> GroupAUCs:
        """Returns the AUC and the weight of every group that has both labels."""
        groups, _, positive, negative = self._rows.rows()
        starts = run_starts((groups,))
        run = starts.cumsum(0) - 1
        num_groups = int(starts.sum())

        def per_run(values: Tensor) -> Tensor:
            return values.new_zeros(num_groups).index_add_(0, run, values)

        negatives, positives = per_run(negative), per_run(positive)
        before_group = negatives.cumsum(0) - negatives
        below = negative.cumsum(0) - negative - before_group[run]
        wins = per_run(positive * (below + 0.5 * negative))
        has_both = (positives > 0) & (negatives > 0)
        aucs = (wins / positives / negatives)[has_both]
        weights = {"samples": positives + negatives, "clicks": positives, "equal": torch.ones_like(positives)}
        return GroupAUCs(groups[starts][has_both], aucs, weights[self.group_weight][has_both])

    def compute(self) -> float:
        """Returns the weighted mean; NaN if no group has both labels."""
        _, aucs, weights = self.per_group()
        return ratio(float((weights * aucs).sum()), float(weights.sum()))

    def reset(self) -> None:
        """Clears the state."""
        self._rows = ScoreStore((torch.int64, torch.float64), self.device)

    def state(self) -> dict[str, Tensor]:
        """Returns distinct groups and scores, ascending, with the weight of label 1 and of label 0 at each."""
        names = ("groups", "scores", "positive", "negative")
        return {name: column.clone() for name, column in zip(names, self._rows.rows(), strict=True)}

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        require_one_length("GroupedAUC", state)

    def _set_state(self, state: Mapping[str, Tensor]) -> None:
        self.reset()
        self._add_state(state)

    def _add_state(self, state: Mapping[str, Tensor]) -> None:
        self._rows.add(state["groups"], state["scores"], state["positive"], state["negative"])

    def _settings(self) -> dict[str, object]:
        return {"group_weight": self.group_weight, "num_bins": self.num_bins}
