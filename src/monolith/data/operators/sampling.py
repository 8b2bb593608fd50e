"""Which rows are kept by chance: a share of all, of the negatives, or of those of a strategy."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.config import config, require_between
from monolith.data.operators.add_label import check_actions
from monolith.data.operators.column_access import ids_of, labels_of, top_ranks, weights_of
from monolith.data.operators.conditions import Condition, Operator
from monolith.data.operators.row_draws import DEFAULT_KEYS, row_keys, uniform_draws
from monolith.data.rows import keep_rows, with_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.data.batch import Batch


@config
class InShare(Condition):
    """Holds for the rows whose number, drawn in [0, 1), lies in [begin, end).

    Shares that lie side by side split the rows: with one seed and the same keys, ``InShare(end=0.9)`` and
    ``InShare(begin=0.9)`` have no row in common and miss none.
    """

    begin: float = 0.0
    end: float = 1.0
    seed: int = 0
    keys: tuple[str, ...] = DEFAULT_KEYS
    """Columns that decide; such as ``("uid",)`` where all rows of a user belong on one side."""

    def __post_init__(self) -> None:
        require_between(self, 0.0, 1.0, "begin", "end")
        if self.begin > self.end:
            raise ValueError(f"InShare: begin must be <= end, got {self.begin} and {self.end}")
        object.__setattr__(self, "keys", tuple(self.keys))

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        numbers = uniform_draws(row_keys(batch, self.keys, self), seed=self.seed, owner=self)[:, 0]
        return (numbers >= self.begin) & (numbers < self.end)


@config
class NegativeSample(Operator):
    """Drops a share of the negatives: rows whose label is below the threshold.

    The share is that of the row's first action by priority, where one is given, or else `drop_rate`. Rows without a
    label (`INVALID_LABEL`, NaN) are no negatives.
    """

    drop_rate: float = field(kw_only=False)
    threshold: float = 0.5
    label_index: int = 0
    action_priority: tuple[int, ...] = ()
    action_drop_rates: Mapping[int, float] = field(default_factory=dict)
    """Share by action; actions of the priority list that are not here drop at `drop_rate`."""
    record_rate: bool = False
    """Multiplies the column ``sample_rate`` of every row, kept negatives and positives alike, by the share of negatives
    that is kept: what the correction of logits divides by. Needs one share for all."""
    label: str = "label"
    seed: int = 0
    keys: tuple[str, ...] = DEFAULT_KEYS

    def __post_init__(self) -> None:
        require_between(self, 0.0, 1.0, "drop_rate")
        object.__setattr__(self, "keys", tuple(self.keys))
        object.__setattr__(self, "action_priority", check_actions(self, "action_priority", self.action_priority))
        rates = {int(action): float(rate) for action, rate in self.action_drop_rates.items()}
        object.__setattr__(self, "action_drop_rates", rates)
        if bad := {action: rate for action, rate in rates.items() if not 0 <= rate <= 1}:
            raise ValueError(f"NegativeSample: action_drop_rates must be in [0, 1], got {bad}")
        if odd := set(rates) - set(self.action_priority):
            raise ValueError(f"NegativeSample: actions {sorted(odd)} have a rate and no place in action_priority")
        if self.record_rate and (rates or self.drop_rate == 1):
            raise ValueError("NegativeSample: record_rate needs one drop_rate below 1, and no action_drop_rates")

    def __call__(self, batch: Batch) -> Batch | None:
        """Returns the batch without the negatives that are dropped."""
        labels = labels_of(batch, self.label, self, width=self.label_index + 1)[:, self.label_index]
        negative = (labels < self.threshold) & (labels > torch.finfo(torch.float32).min)
        numbers = uniform_draws(row_keys(batch, self.keys, self), seed=self.seed, owner=self)[:, 0]
        kept = keep_rows(batch, ~(negative & (numbers.to(labels.device) < self._rates(batch))))
        if kept is not None and self.record_rate:
            return with_columns(kept, {"sample_rate": weights_of(kept, "sample_rate") * (1 - self.drop_rate)})
        return kept

    def _rates(self, batch: Batch) -> Tensor | float:
        if not self.action_priority:
            return self.drop_rate
        ranks = top_ranks(ids_of(batch, "actions", self), torch.tensor(self.action_priority))
        rates = [self.action_drop_rates.get(action, self.drop_rate) for action in self.action_priority]
        return torch.tensor([*rates, self.drop_rate], dtype=torch.float64, device=ranks.device)[ranks]


@config
class SpecialStrategy(Operator):
    """Keeps rows at the rate of their strategy, and relabels them if the strategy sets a label.

    The first of the listed strategies that a row has decides. Rows that have only others are unchanged; ByteDance
    Monolith left them undefined.
    """

    rates: Mapping[int, float] = field(kw_only=False)
    """Strategy to the share of its rows that is kept, in order of priority."""
    labels: Mapping[int, float] = field(default_factory=dict)
    """Strategy to what becomes the first label of its rows."""
    keep_empty: bool = True
    """Whether rows without any strategy stay."""
    label: str = "label"
    seed: int = 0
    keys: tuple[str, ...] = DEFAULT_KEYS

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(self.keys))
        object.__setattr__(self, "rates", {int(number): float(rate) for number, rate in self.rates.items()})
        object.__setattr__(self, "labels", {int(number): float(label) for number, label in self.labels.items()})
        if bad := {number: rate for number, rate in self.rates.items() if not 0 <= rate <= 1}:
            raise ValueError(f"SpecialStrategy: rates must be in [0, 1], got {bad}")
        if odd := set(self.labels) - set(self.rates):
            raise ValueError(f"SpecialStrategy: strategies {sorted(odd)} have a label and no rate")

    @classmethod
    def from_text(cls, text: str, **options: Any) -> SpecialStrategy:
        """Parses ``"strategy:rate[:label],..."``, as given by flags.

        >>> SpecialStrategy.from_text("7:0.5,9:1:0").labels
        {9: 0.0}
        """
        parts = [part.split(":") for part in text.split(",") if part.strip()]
        if any(len(part) not in {2, 3} for part in parts):
            raise ValueError(f"SpecialStrategy: text must be 'strategy:rate[:label],...', got {text!r}")
        rates = {int(part[0]): float(part[1]) for part in parts}
        labels = {int(part[0]): float(part[2]) for part in parts if len(part) == 3}
        return cls(rates, labels=labels, **options)

    def __call__(self, batch: Batch) -> Batch | None:
        """Returns the rows that stay, relabelled."""
        strategies = ids_of(batch, "special_strategies", self)
        ranks = top_ranks(strategies, torch.tensor(list(self.rates), dtype=torch.int64))
        rates = torch.tensor([*self.rates.values(), 1.0], dtype=torch.float64, device=ranks.device)[ranks]
        rates = torch.where(strategies.lengths() == 0, float(self.keep_empty), rates)
        numbers = uniform_draws(row_keys(batch, self.keys, self), seed=self.seed, owner=self)[:, 0]
        if self.labels:
            labels = labels_of(batch, self.label, self).clone()
            new = [self.labels.get(number, torch.nan) for number in self.rates]
            values = torch.tensor([*new, torch.nan], dtype=labels.dtype, device=labels.device)[ranks]
            labels[:, 0] = torch.where(values.isnan(), labels[:, 0], values)
            batch = with_columns(batch, {self.label: labels})
        return keep_rows(batch, numbers.to(rates.device) < rates)
