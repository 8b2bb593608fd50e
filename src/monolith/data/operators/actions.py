"""User actions on an item, as numbers in the column ``actions``."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import torch

from monolith.config import config
from monolith.data.batch_rows import with_columns
from monolith.data.operators.column_access import ids_of
from monolith.data.operators.conditions import Condition, Operator
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.data.batch import Batch

__all__ = ["AddAction", "check_actions"]


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
