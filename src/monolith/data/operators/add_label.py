"""Actions of users, and labels of several tasks from them: which actions are positive for a task, which negative."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.config import Config, config, require_between, require_finite
from monolith.data.columns import INVALID_LABEL
from monolith.data.operators.column_access import ids_of, labels_of, rows_with_any
from monolith.data.operators.conditions import Condition, Operator
from monolith.data.operators.row_draws import DEFAULT_KEYS, row_keys, uniform_draws
from monolith.data.rows import with_columns
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.data.batch import Batch


@config
class AddAction(Operator):
    """Appends an action to the rows for which a condition holds.

    >>> from monolith.data import Batch
    >>> from monolith.data.operators import Value
    >>> batch = Batch({"rank": torch.tensor([1, 9]), "actions": Ragged.from_lists([[4], []])}, num_rows=2)
    >>> AddAction(77, where=Value("rank", op="gt", operand=5))(batch)["actions"]
    Ragged([[4], [77]], dtype=torch.int64)
    """

    action: int = field(kw_only=False)
    where: Condition

    def __post_init__(self) -> None:
        check_actions(self, "action", (self.action,))
        if not isinstance(self.where, Condition):
            raise TypeError(f"AddAction: where must be a Condition, got {self.where!r}")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with the action in the rows for which the condition holds."""
        actions = ids_of(batch, "actions", self)
        added = self.where.holds(batch).to(actions.device).to(torch.int64)
        # Each value moves by the number of actions that were added to earlier rows.
        before = added.cumsum(0) - added
        values = actions.flat_values.new_full((len(actions.flat_values) + int(added.sum()),), self.action)
        places = torch.arange(len(actions.flat_values), device=actions.device) + before[actions.value_rowids()]
        values[places] = actions.flat_values
        longer = Ragged.from_lengths(values, actions.lengths() + added, validate=False)
        return with_columns(batch, {"actions": longer})


def check_actions(owner: object, name: str, actions: Iterable[object]) -> tuple[int, ...]:
    """Returns the actions; refuses duplicates and values that are not 32-bit integers."""
    checked = []
    for action in actions:
        if isinstance(action, bool) or not isinstance(action, int) or not -(1 << 31) <= action < 1 << 31:
            raise ValueError(f"{type(owner).__name__}: {name} must be 32-bit integers, got {action!r}")
        checked.append(action)
    if len(set(checked)) != len(checked):
        raise ValueError(f"{type(owner).__name__}: {name} must differ from each other, got {checked}")
    return tuple(checked)


POSITIVE_LABEL = 1.0
"""The label of a row that has a positive action."""


@config
class TaskLabel(Config):
    """One task: a row with a positive action is positive.

    Of the others those with a negative action are negative and the rest has no label; without `negative` all others
    are negative.
    """

    positive: tuple[int, ...] = field(kw_only=False)
    negative: tuple[int, ...] = ()
    sample_rate: float = 1.0
    """Share of the negatives that keeps its label; the others have none."""

    def __post_init__(self) -> None:
        require_between(self, 0.0, 1.0, "sample_rate")
        for name in ("positive", "negative"):
            object.__setattr__(self, name, check_actions(self, name, getattr(self, name)))
        if both := set(self.positive) & set(self.negative):
            raise ValueError(f"TaskLabel: actions {sorted(both)} cannot be both positive and negative")

    def label(self, actions: Ragged, values: tuple[float, float], draws: Tensor) -> Tensor:
        """Returns the task's label of each row, float32 [B]; `draws` are in [0, 1)."""
        positive = rows_with_any(actions, _sorted(self.positive))
        negative = rows_with_any(actions, _sorted(self.negative)) if self.negative else torch.ones_like(positive)
        kept = negative & (draws < self.sample_rate)
        label = torch.where(kept, float(values[0]), INVALID_LABEL)
        return torch.where(positive, float(values[1]), label)


@config
class AddLabel(Operator):
    """Appends one label for each task to those that a row has, by its actions; sets the column ``sample_rate``.

    An existing first label that is not positive is removed first (it becomes `INVALID_LABEL`), so that a sample of one
    task becomes one of several. A batch without the label column gets one. Filter rows without any label by
    `HasValidLabel`.

    >>> from monolith.data import Batch
    >>> from monolith.tensors import Ragged
    >>> batch = Batch({"actions": Ragged.from_lists([[1], [3], []]), "uid": torch.arange(3)}, num_rows=3)
    >>> AddLabel.from_text("1,2:3:1.0;4::1.0", keys=("uid",))(batch)["label"]
    tensor([[ 1.0000e+00,  0.0000e+00],
            [ 0.0000e+00,  0.0000e+00],
            [-3.4028e+38,  0.0000e+00]])
    """

    tasks: tuple[TaskLabel, ...] = field(kw_only=False)
    negative_value: float = 0.0
    positive_value: float = POSITIVE_LABEL
    new_sample_rate: float = 1.0
    label: str = "label"
    seed: int = 0
    keys: tuple[str, ...] = DEFAULT_KEYS
    """Columns that decide which negatives keep their label."""

    def __post_init__(self) -> None:
        require_between(self, 0.0, 1.0, "new_sample_rate")
        require_finite(self, "negative_value", "positive_value")
        if self.new_sample_rate == 0:
            raise ValueError("AddLabel: new_sample_rate must be > 0, got 0")
        object.__setattr__(self, "keys", tuple(self.keys))
        object.__setattr__(self, "tasks", tuple(self.tasks))
        if not self.tasks or not all(isinstance(task, TaskLabel) for task in self.tasks):
            raise ValueError(f"AddLabel: tasks must be TaskLabels, at least one, got {self.tasks}")

    @classmethod
    def from_text(cls, text: str, **options: Any) -> AddLabel:
        """Parses ``"positive,...:negative,...:rate;..."``, one part for each task, as given by flags."""
        return cls(parse_task_labels(text), **options)

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with the labels of the tasks."""
        actions = ids_of(batch, "actions", self)
        draws = self._draws(batch).to(actions.device)
        values = (self.negative_value, self.positive_value)
        added = [task.label(actions, values, draws[:, number]) for number, task in enumerate(self.tasks)]
        labels = torch.stack(added, dim=1)
        if self.label in batch:
            own = labels_of(batch, self.label, self, width=0)
            first = torch.where(own[:, :1] <= 0, INVALID_LABEL, own[:, :1])
            labels = torch.cat([first, own[:, 1:], labels.to(own)], dim=1)
        rates = torch.full((batch.num_rows,), float(self.new_sample_rate), device=labels.device)
        return with_columns(batch, {self.label: labels, "sample_rate": rates})

    def _draws(self, batch: Batch) -> Tensor:
        if all(task.sample_rate == 1 for task in self.tasks):
            return torch.zeros(batch.num_rows, len(self.tasks))  # nothing is left to chance, so no key is needed
        keys = row_keys(batch, self.keys, self)
        return uniform_draws(keys, seed=self.seed, owner=self, count=len(self.tasks))


def parse_task_labels(text: str) -> tuple[TaskLabel, ...]:
    """Parses tasks from ``"positive,...:negative,...:rate;..."``; negatives and the rate are optional.

    >>> parse_task_labels("1,2:3:0.5;4")
    (TaskLabel(positive=(1, 2), negative=(3,), sample_rate=0.5), TaskLabel(positive=(4,), negative=(), sample_rate=1.0))
    """
    tasks = []
    for part in text.split(";"):
        if not part.strip():
            continue
        fields = [piece.strip() for piece in part.split(":")]
        if len(fields) > 3:
            raise ValueError(f"task labels must be 'positive,...:negative,...:rate', got {part!r} in {text!r}")
        try:
            actions = [tuple(int(action) for action in piece.split(",") if action.strip()) for piece in fields[:2]]
            rate = float(fields[2]) if len(fields) == 3 and fields[2] else 1.0
        except ValueError:
            raise ValueError(f"task labels must be numbers, got {part!r} in {text!r}") from None
        tasks.append(TaskLabel(actions[0], negative=actions[1] if len(actions) > 1 else (), sample_rate=rate))
    return tuple(tasks)


def _sorted(actions: tuple[int, ...]) -> Tensor:
    return torch.tensor(sorted(actions), dtype=torch.int64)
