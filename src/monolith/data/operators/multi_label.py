"""The label of each row in the column of its head, for models of one head per channel, city or client."""

from __future__ import annotations

from dataclasses import field
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from monolith.config import config
from monolith.data.batch_rows import with_columns
from monolith.data.columns import INVALID_LABEL
from monolith.data.operators.actions import check_actions
from monolith.data.operators.add_label import POSITIVE_LABEL
from monolith.data.operators.column_access import column_of, ids_of, labels_of, numbers_of
from monolith.data.operators.conditions import Operator
from monolith.data.operators.label_edits import place_labels
from monolith.data.operators.row_sets import rows_with_any, top_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.data.batch import Batch

__all__ = ["MultiHeadLabel"]


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
        needed = max(index_of.values(), default=-1) + 1
        if not index_of or min(index_of.values()) < 0:
            raise ValueError(f"MultiHeadLabel: tasks must be numbered from 0, got {index_of}")
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
