"""Area under the ROC curve: of all samples, exact or in bins, and of each group of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from monolith.metrics.metric import (
    Metric,
    SumMetric,
    check_samples,
    ratio,
    refuse,
    require_binary,
    require_probabilities,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


_MIN_PENDING = 1 << 20
"""Rows that may wait unsorted: of the order of a large batch, so that small batches do not each pay for a sort."""


class ScoreStore:
    """Weights of label 1 and of label 0 by key; the keys are scores, or groups and scores.

    Rows are appended unsorted until more are unsorted than sorted (and at least a million); then all are sorted and
    equal keys added up. So adding costs O(log n) per row on average, however small the batches are.

    Args:
        key_dtypes: One per key, the most significant first.
        device: Device of the rows.
    """

    def __init__(self, key_dtypes: tuple[torch.dtype, ...], device: torch.device) -> None:
        dtypes = (*key_dtypes, torch.float64, torch.float64)
        self._num_keys = len(key_dtypes)
        self._sorted = tuple(torch.zeros(0, dtype=dtype, device=device) for dtype in dtypes)
        self._pending: list[tuple[Tensor, ...]] = []
        self._num_pending = 0

    def add(self, *columns: Tensor) -> None:
        """Adds rows: the keys, then the weights of label 1 and of label 0. The tensors are kept: pass copies."""
        if len(columns[0]) == 0:
            return
        self._pending.append(columns)
        self._num_pending += len(columns[0])
        if self._num_pending > max(_MIN_PENDING, len(self._sorted[0])):
            self.rows()

    def rows(self) -> tuple[Tensor, ...]:
        """Returns distinct keys in ascending order, and the weights of both labels at each."""
        if self._pending:
            columns = zip(self._sorted, *self._pending, strict=True)
            self._sorted = add_up_equal(tuple(torch.cat(parts) for parts in columns), self._num_keys)
            self._pending, self._num_pending = [], 0
        return self._sorted


def add_up_equal(columns: tuple[Tensor, ...], num_keys: int) -> tuple[Tensor, ...]:
    """Returns rows in the order of their first `num_keys` columns, those with equal keys added up; at least one row."""
    order = columns[num_keys - 1].argsort(stable=True)
    for key in reversed(columns[: num_keys - 1]):
        order = order[key[order].argsort(stable=True)]
    columns = tuple(column[order] for column in columns)
    is_first = run_starts(columns[:num_keys])
    run = is_first.cumsum(0) - 1
    num_runs = int(run[-1]) + 1
    sums = (column.new_zeros(num_runs).index_add_(0, run, column) for column in columns[num_keys:])
    return (*(column[is_first] for column in columns[:num_keys]), *sums)


def run_starts(keys: tuple[Tensor, ...]) -> Tensor:
    """Returns True where a row's keys differ from those of the row before it, and at the first row."""
    starts = torch.ones_like(keys[0], dtype=torch.bool)
    if len(starts) > 1:
        changes = [key[1:] != key[:-1] for key in keys]
        starts[1:] = torch.stack(changes).any(dim=0)
    return starts


def require_one_length(subject: str, state: Mapping[str, Tensor]) -> None:
    """Raises if the columns of a state are not flat or differ in length."""
    shapes = {name: list(tensor.shape) for name, tensor in state.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len({tuple(shape) for shape in shapes.values()}) > 1:
        raise ValueError(f"{subject}: the tensors of a state must be flat and of one length, got shapes {shapes}")


def area_under_roc(positive: Tensor, negative: Tensor) -> float:
    """Returns the AUC from the weights of both classes at distinct scores in ascending order."""
    below = negative.cumsum(0) - negative
    wins = (positive * (below + 0.5 * negative)).sum()
    return ratio(ratio(float(wins), float(positive.sum())), float(negative.sum()))


class BinnedAUC(SumMetric):
    """AUC in constant memory: scores are counted in bins of equal width, and equal bins count as ties.

    The error against the exact AUC is at most :meth:`error_bound`, half the share of pairs in one bin; with the
    default 65,536 bins it is far below what matters unless all predictions crowd in a few of them. The state has the
    weights by label and bin.

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

    _state_name = "counts"

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
        self._shape = (2, num_bins)
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
        self._sums = self._sums + counts.reshape(2, self.num_bins)

    def compute(self) -> float:
        """Returns the AUC; NaN while one of the classes was not seen."""
        return area_under_roc(self._sums[1], self._sums[0])

    def error_bound(self) -> float:
        """Returns the largest possible distance to the exact AUC of what was seen; NaN where the AUC is."""
        negative, positive = self._sums
        in_one_bin = float((positive * negative).sum())
        return ratio(ratio(0.5 * in_one_bin, float(positive.sum())), float(negative.sum()))

    def _settings(self) -> dict[str, object]:
        return {"num_bins": self.num_bins, "low": self.low, "high": self.high}


class _RowsAUC(Metric):
    """An AUC that keeps rows. Its state has their distinct keys, ascending, with the weight of both labels at each."""

    _keys: ClassVar[Mapping[str, torch.dtype]]

    def reset(self) -> None:
        """Clears the state."""
        self._rows = ScoreStore(tuple(self._keys.values()), self.device)

    def state(self) -> dict[str, Tensor]:
        """Returns the distinct keys, ascending, with the weight of label 1 and of label 0 at each."""
        names = (*self._keys, "positive", "negative")
        return {name: column.clone() for name, column in zip(names, self._rows.rows(), strict=True)}

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        require_one_length(type(self).__name__, state)

    def _set_state(self, state: Mapping[str, Tensor]) -> None:
        self.reset()
        self._add_state(state)

    def _add_state(self, state: Mapping[str, Tensor]) -> None:
        self._rows.add(*(state[name] for name in self._keys), state["positive"], state["negative"])


class ExactAUC(_RowsAUC):
    """AUC without rounding of scores: keeps the weight of both classes at every distinct score.

    Memory grows with the number of distinct scores, 24 bytes each. Scores are any finite numbers.

    >>> metric = ExactAUC()
    >>> metric.update(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()
    0.75
    """

    _keys: ClassVar = {"scores": torch.float64}

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


_GROUP_WEIGHTS = ("samples", "clicks", "equal")


class GroupAUCs(NamedTuple):
    """One entry per group that has both labels, by ascending group."""

    groups: Tensor
    """int64 ``[G]``."""
    aucs: Tensor
    """float64 ``[G]``."""
    weights: Tensor
    """float64 ``[G]``: weight of the group in the mean."""


class GroupedAUC(_RowsAUC):
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

    _keys: ClassVar = {"groups": torch.int64, "scores": torch.float64}

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

    def _settings(self) -> dict[str, object]:
        return {"group_weight": self.group_weight, "num_bins": self.num_bins}
