"""Repeats and relabels samples by user actions, and reconciles them with what was emitted before.

With fast emit a sample is emitted immediately as a negative, and again when the real action arrives. The second one has
the actions of the first (``pre_actions``), and is repeated as often as needed to compensate for it.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from monolith.config import config
from monolith.data.batch_rows import take_rows, with_columns
from monolith.data.operators.actions import check_actions
from monolith.data.operators.column_access import ids_of, labels_of
from monolith.data.operators.conditions import Operator
from monolith.data.operators.row_sets import top_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.data.batch import Batch
    from monolith.tensors import Ragged

__all__ = ["InstanceReweight"]

_UNKNOWN_RANK, _NO_ACTION_RANK = 1 << 40, 1 << 41  # after every rank of a priority list


class _Outcome(NamedTuple):
    """Outcome of the actions of each row; all [B]."""

    rank: Tensor
    copies: Tensor
    label: Tensor
    """NaN where the first action has none, or where there is no action."""


@config
class InstanceReweight(Operator):
    """Repeats each row, 0 times or more, and sets its first label, by its first action by priority.

    The count of some actions is the weight of the first one by priority, times the weights of all that are not in the
    priority list. A row whose `actions` are ahead of its `pre_actions` in priority comes out

    - with labels for both: pre count + count times where they differ; where they agree as often as the counts are
      apart, with the sign of the label changed if the pre count is larger;
    - with a label for its actions only: count times;
    - without one: not at all.

    A row without actions and pre-actions comes out once as it is; all others not at all.

    >>> from monolith.data import Batch
    >>> from monolith.tensors import Ragged
    >>> reweight = InstanceReweight.from_text("1,3", "1:2:1,3:1:-1")
    >>> batch = Batch({"actions": Ragged.from_lists([[1, 3], [1]]), "pre_actions": Ragged.from_lists([[], [3]]),
    ...                "label": torch.zeros(2, 1)}, num_rows=2)
    >>> reweight(batch)["label"].view(-1)
    tensor([1., 1., 1., 1., 1.])
    """

    action_priority: tuple[int, ...] = field(kw_only=False)
    weights: Mapping[int, int]
    """Action to its weight; 1 where there is none."""
    labels: Mapping[int, float]
    """Action to its label."""
    label: str = "label"
    pre_actions: str | None = "pre_actions"
    """Column of the actions that were emitted before; None: there were none."""

    def __post_init__(self) -> None:
        priority = check_actions(self, "action_priority", self.action_priority)
        object.__setattr__(self, "action_priority", priority)
        weights = {int(action): weight for action, weight in self.weights.items()}
        object.__setattr__(self, "labels", {int(action): float(label) for action, label in self.labels.items()})
        if bad := {action: weight for action, weight in weights.items() if weight < 0 or weight != int(weight)}:
            raise ValueError(f"InstanceReweight: weights must be integers >= 0, got {bad}")
        object.__setattr__(self, "weights", {action: int(weight) for action, weight in weights.items()})

    @classmethod
    def from_text(cls, action_priority: str, reweight: str, **options: Any) -> InstanceReweight:
        """Parses ``"action,..."`` and ``"action:weight:label,..."``, as given by flags."""
        try:
            parts = [part.split(":") for part in reweight.split(",") if part.strip()]
            weights = {int(action): int(weight) for action, weight, _ in parts}
            labels = {int(action): float(label) for action, _, label in parts}
            priority = tuple(int(action) for action in action_priority.split(",") if action.strip())
        except ValueError:
            got = f"{action_priority!r} and {reweight!r}"
            text = f"InstanceReweight: texts must be 'action,...' and 'action:weight:label,...', got {got}"
            raise ValueError(text) from None
        return cls(priority, weights=weights, labels=labels, **options)

    def __call__(self, batch: Batch) -> Batch | None:
        """Returns the repeated rows; None if there are none."""
        now = self._outcome(ids_of(batch, "actions", self))
        before = self._before(batch, now)
        counts, labels = _reconciled(before, now)
        rows = torch.repeat_interleave(counts)
        if not len(rows):
            return None
        repeated = take_rows(batch, rows)
        own = labels_of(repeated, self.label, self).clone()
        new = labels[rows].to(own)
        own[:, 0] = torch.where(new.isnan(), own[:, 0], new)
        return with_columns(repeated, {self.label: own})

    def _before(self, batch: Batch, now: _Outcome) -> _Outcome:
        if self.pre_actions is not None:
            return self._outcome(ids_of(batch, self.pre_actions, self))
        none = torch.full_like(now.rank, _NO_ACTION_RANK)
        return _Outcome(none, torch.ones_like(none), torch.full_like(now.label, torch.nan))

    def _outcome(self, actions: Ragged) -> _Outcome:
        ranks = top_ranks(actions, torch.tensor(self.action_priority, dtype=torch.int64))
        listed = len(self.action_priority)
        weights = [self.weights.get(action, 1) for action in self.action_priority]
        labels = [self.labels.get(action, torch.nan) for action in self.action_priority]
        counts = torch.tensor([*weights, 1], device=actions.device)[ranks]
        others = torch.ones_like(actions.flat_values)
        for action, weight in self.weights.items():
            if action not in self.action_priority:
                others[actions.flat_values == action] = weight
        counts.scatter_reduce_(0, actions.value_rowids(), others, "prod", include_self=True)
        known = torch.tensor([*labels, torch.nan], dtype=torch.float64, device=actions.device)[ranks]
        unlisted = torch.where(actions.lengths() == 0, _NO_ACTION_RANK, _UNKNOWN_RANK)
        return _Outcome(torch.where(ranks == listed, unlisted, ranks), counts, known)


def _reconciled(before: _Outcome, now: _Outcome) -> tuple[Tensor, Tensor]:
    """Returns how often each row comes out, int64 [B], and with which label; NaN keeps its own."""
    differ = before.label != now.label
    surplus = now.copies - before.copies
    both = torch.where(differ, before.copies + now.copies, surplus.abs())
    counts = torch.where(before.label.isnan(), now.copies, both)
    counts = torch.where(now.label.isnan() | (before.rank <= now.rank), 0, counts)
    labels = torch.where(~differ & (surplus < 0), -now.label, now.label)
    untouched = (before.rank == _NO_ACTION_RANK) & (now.rank == _NO_ACTION_RANK)
    return torch.where(untouched, 1, counts), torch.where(untouched, torch.nan, labels)
