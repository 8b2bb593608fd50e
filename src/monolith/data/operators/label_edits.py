"""Labels clamped, rescaled, moved to the task of their row or the column of its head, and samples reweighted.

Where a task has no label it stays so.

`InstanceReweight` repeats and relabels samples by user actions, and reconciles them with what was emitted before: with
fast emit a sample is emitted immediately as a negative, and again when the real action arrives. The second one has the
actions of the first (``pre_actions``), and is repeated as often as needed to compensate for it.
"""

from __future__ import annotations

from dataclasses import field
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from monolith.config import config, require_at_least
from monolith.data.columns import INVALID_LABEL
from monolith.data.operators.add_label import POSITIVE_LABEL, check_actions
from monolith.data.operators.column_access import column_of, ids_of, labels_of, numbers_of, rows_with_any, top_ranks
from monolith.data.operators.conditions import Operator
from monolith.data.rows import take_rows, with_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.data.batch import Batch
    from monolith.tensors import Ragged

_METHODS = ("log", "scale", "scale2int", "pow", "repow", "scalelog")


@config
class LabelUpperBound(Operator):
    """Clamps the label of each task from above.

    >>> from monolith.data import Batch
    >>> LabelUpperBound((10.0,))(Batch({"label": torch.tensor([[3.0, 99.0], [99.0, 99.0]])}, num_rows=2))["label"]
    tensor([[ 3., 99.],
            [10., 99.]])
    """

    bounds: tuple[float, ...] = field(kw_only=False)
    """Bounds of the first tasks; further tasks have none."""
    label: str = "label"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", tuple(map(float, self.bounds)))
        if any(bound != bound for bound in self.bounds):  # noqa: PLR0124 - NaN is what differs from itself
            raise ValueError(f"LabelUpperBound: bounds must be numbers, got {self.bounds}")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with clamped labels."""
        labels = labels_of(batch, self.label, self, width=len(self.bounds))
        bounds = torch.full((labels.shape[1],), torch.inf, dtype=labels.dtype, device=labels.device)
        bounds[: len(self.bounds)] = torch.tensor(self.bounds, dtype=labels.dtype)
        return with_columns(batch, {self.label: torch.minimum(labels, bounds)})


@config
class LabelNormalization(Operator):
    """Rescales every label by a chain of methods, each with its value v.

    | method | l becomes |
    |---|---|
    | log | ln(max(l + v, 0)) |
    | scale | l / v |
    | scale2int | l / v without its fraction |
    | pow | (l + 1) ** v |
    | repow | l ** v where l > 0, else 0 |
    | scalelog | ln(max(l / v + 1, 0)) |

    `INVALID_LABEL` is unchanged; ByteDance Monolith rescaled it too. The logarithm of 0 is -inf, by the formula.
    """

    methods: tuple[str, ...] = field(kw_only=False)
    values: tuple[float, ...] = field(kw_only=False)
    label: str = "label"

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(self.methods))
        object.__setattr__(self, "values", tuple(map(float, self.values)))
        if len(self.methods) != len(self.values):
            got = f"{len(self.methods)} and {len(self.values)}"
            raise ValueError(f"LabelNormalization: methods and values must be of one length, got {got}")
        for method, value in zip(self.methods, self.values, strict=True):
            if method not in _METHODS:
                raise ValueError(f"LabelNormalization: method must be one of {', '.join(_METHODS)}, got {method!r}")
            if method.startswith("scale") and value == 0:
                raise ValueError(f"LabelNormalization: the value of {method!r} must not be 0")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with rescaled labels."""
        labels = labels_of(batch, self.label, self)
        scaled = labels
        for method, value in zip(self.methods, self.values, strict=True):
            scaled = _normalize(scaled, method, value)
        return with_columns(batch, {self.label: torch.where(labels == INVALID_LABEL, labels, scaled)})


@config
class ScatterLabel(Operator):
    """Moves the first label to the task of the row's channel; all other tasks have none.

    Rows of a channel that is not listed are left without a label.
    """

    index_of: Mapping[int, int] = field(kw_only=False)
    """Channel to task."""
    column: str = "chnid"
    label: str = "label"

    def __post_init__(self) -> None:
        index_of = {int(channel): int(index) for channel, index in self.index_of.items()}
        if not index_of or min(index_of.values()) < 0:
            raise ValueError(f"ScatterLabel: tasks must be numbered from 0, got {index_of}")
        object.__setattr__(self, "index_of", index_of)

    @classmethod
    def from_text(cls, text: str, **options: Any) -> ScatterLabel:
        """Parses ``"channel:index,..."``, as given by flags."""
        try:
            pairs = [part.split(":") for part in text.split(",") if part.strip()]
            return cls({int(channel): int(index) for channel, index in pairs}, **options)
        except ValueError:
            raise ValueError(f"ScatterLabel: text must be 'channel:index,...', got {text!r}") from None

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with each label in its place."""
        first = labels_of(batch, self.label, self)[:, 0]
        channels = numbers_of(batch, self.column, self)
        tasks = torch.full_like(channels, -1)
        for channel, index in self.index_of.items():
            tasks[channels == channel] = index
        return with_columns(batch, {self.label: place_labels(first, tasks, max(self.index_of.values()) + 1)})


@config
class RankLabel(Operator):
    """Appends a label for ranking: where the row stood, or which kind it was.

    ``"draw"``: ``is_draw`` as 0 or 1. ``"chnid"``: channels 0 and 1 as they are, all others 2. ``"rank"``: ``rank``, at
    most ``rank_num - 1``. Upstream calls it ``fill_multi_rank_output``.
    """

    source: str = field(kw_only=False)
    rank_num: int = 18
    label: str = "label"

    def __post_init__(self) -> None:
        if self.source not in {"draw", "chnid", "rank"}:
            raise ValueError(f"RankLabel: source must be 'draw', 'chnid' or 'rank', got {self.source!r}")
        require_at_least(self, 1, "rank_num")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with one more label."""
        labels = labels_of(batch, self.label, self, width=0)
        numbers = numbers_of(batch, {"draw": "is_draw"}.get(self.source, self.source), self).to(torch.int64)
        if self.source == "draw":
            numbers = (numbers != 0).to(torch.int64)
        elif self.source == "chnid":
            numbers = torch.where((numbers == 0) | (numbers == 1), numbers, 2)
        else:
            numbers = numbers.clamp(max=self.rank_num - 1)
        return with_columns(batch, {self.label: torch.cat([labels, numbers[:, None].to(labels)], dim=1)})


def place_labels(labels: Tensor, tasks: Tensor, num_tasks: int) -> Tensor:
    """Returns each label in the column of its task, `INVALID_LABEL` elsewhere, [B, num_tasks]; task -1: none."""
    placed = labels.new_full((len(labels), num_tasks + 1), INVALID_LABEL)
    placed.scatter_(1, torch.where(tasks < 0, num_tasks, tasks)[:, None], labels[:, None])
    return placed[:, :num_tasks].contiguous()


def _normalize(labels: Tensor, method: str, value: float) -> Tensor:
    if method == "log":
        return (labels + value).clamp(min=0).log()
    if method == "scale":
        return labels / value
    if method == "scale2int":
        return (labels / value).trunc()
    if method == "pow":
        return (labels + 1).pow(value)
    if method == "repow":
        return torch.where(labels > 0, labels.pow(value), torch.where(labels.isnan(), labels, 0.0))
    return (labels / value + 1).clamp(min=0).log()


@config
class MultiHeadLabel(Operator):
    """Sets the label of the task of a row's head; other tasks have none. ByteDance Monolith's ``multi_label_gen``.

    Without actions the label is the first one that the row has. With them it is 1 or 0: of rows whose action is in
    `positive`, and of those whose action is in `negative` (without `negative`: of all others); rows whose action is in
    neither have none. With a priority a row's action is its first by priority; without, a positive one decides before a
    negative one.
    """

    index_of: Mapping[str, int] = field(kw_only=False)
    """Head to task. Heads of a column of numbers are written as numbers."""
    column: str = "chnid"
    """Column of the head of a row; numbers or strings."""
    num_tasks: int = 0
    """0: as many as `index_of` names."""
    positive: tuple[int, ...] = ()
    negative: tuple[int, ...] = ()
    action_priority: tuple[int, ...] = ()
    label: str = "label"

    def __post_init__(self) -> None:
        index_of = {str(head): int(index) for head, index in self.index_of.items()}
        if not index_of or min(index_of.values()) < 0:
            raise ValueError(f"MultiHeadLabel: tasks must be numbered from 0, got {index_of}")
        needed = max(index_of.values()) + 1
        if self.num_tasks and self.num_tasks < needed:
            raise ValueError(f"MultiHeadLabel: num_tasks must be {needed} or more, got {self.num_tasks}")
        object.__setattr__(self, "index_of", index_of)
        object.__setattr__(self, "num_tasks", self.num_tasks or needed)
        for name in ("positive", "negative", "action_priority"):
            object.__setattr__(self, name, check_actions(self, name, getattr(self, name)))
        if both := set(self.positive) & set(self.negative):
            raise ValueError(f"MultiHeadLabel: actions {sorted(both)} cannot be both positive and negative")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with each label in the place of its head."""
        labels = self._labels(batch)
        tasks = self._tasks(batch).to(labels.device)
        return with_columns(batch, {self.label: place_labels(labels, tasks, self.num_tasks)})

    def _labels(self, batch: Batch) -> Tensor:
        if not self.positive and not self.negative:
            return labels_of(batch, self.label, self)[:, 0]
        actions = ids_of(batch, "actions", self)
        if self.action_priority:
            ranks = top_ranks(actions, torch.tensor(self.action_priority))
            values = [self._label_of(action) for action in self.action_priority]
            # A row without a listed action has none that could be positive or negative.
            other = INVALID_LABEL if self.negative else 0.0
            return torch.tensor([*values, other], dtype=torch.float32, device=ranks.device)[ranks]
        positive = rows_with_any(actions, torch.tensor(sorted(self.positive), dtype=torch.int64))
        negative = torch.ones_like(positive)
        if self.negative:
            negative = rows_with_any(actions, torch.tensor(sorted(self.negative), dtype=torch.int64))
        return torch.where(positive, POSITIVE_LABEL, torch.where(negative, 0.0, INVALID_LABEL))

    def _label_of(self, action: int) -> float:
        if action in self.positive:
            return POSITIVE_LABEL
        return 0.0 if not self.negative or action in self.negative else INVALID_LABEL

    def _tasks(self, batch: Batch) -> Tensor:
        heads = column_of(batch, self.column, self)
        if isinstance(heads, list):
            index_of = {head.encode(): index for head, index in self.index_of.items()}
            return torch.from_numpy(np.fromiter(map(index_of.get, heads, repeat(-1)), np.int64, count=len(heads)))
        numbers = numbers_of(batch, self.column, self)
        tasks_of = torch.full_like(numbers, -1, dtype=torch.int64)
        for head, index in self.index_of.items():
            try:
                tasks_of[numbers == int(head)] = index
            except ValueError:
                raise TypeError(f"MultiHeadLabel: column {self.column!r} has numbers, head {head!r} is none") from None
        return tasks_of


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
