"""The base of operators, and the operators that keep the rows for which a condition holds.

A condition is a value: it can be combined with ``&``, ``|`` and ``~``, printed, compared, and saved as a dictionary.
Calling it keeps the rows for which it holds; `Condition.holds` returns the mask of those rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from typing import TYPE_CHECKING

import torch

from monolith.config import Config, config
from monolith.data.rows import keep_rows

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.data.batch import Batch


@config
class Operator(Config, ABC):
    """Base of the frozen steps from one batch to the next; each works on a batch as it is, with or without a dataset.

    Most return a batch. Those that can take rows away return None in place of a batch without rows; a dataset's ``map``
    steps over it.
    """

    @abstractmethod
    def __call__(self, batch: Batch) -> Batch | None:
        """Applies the operator to a batch; None if no row is left."""


@config
class Condition(Operator):
    """Base of what holds for a row or does not."""

    @abstractmethod
    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""

    def __call__(self, batch: Batch) -> Batch | None:
        """Returns the rows for which it holds, or None."""
        return keep_rows(batch, self.holds(batch))

    def __and__(self, other: Condition) -> Condition:
        return AllOf((self, other))

    def __or__(self, other: Condition) -> Condition:
        return AnyOf((self, other))

    def __invert__(self) -> Condition:
        return Not(self)


@config
class AllOf(Condition):
    """Holds where every one of its conditions holds; of none: everywhere."""

    conditions: tuple[Condition, ...] = field(kw_only=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "conditions", _checked(self, self.conditions))

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        if not self.conditions:
            return torch.ones(batch.num_rows, dtype=torch.bool)
        rows = self.conditions[0].holds(batch)
        for condition in self.conditions[1:]:
            rows = rows & condition.holds(batch).to(rows.device)  # one by texts or chance is made on the CPU
        return rows


@config
class AnyOf(Condition):
    """Holds where one of its conditions holds; of none: nowhere."""

    conditions: tuple[Condition, ...] = field(kw_only=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "conditions", _checked(self, self.conditions))

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        if not self.conditions:
            return torch.zeros(batch.num_rows, dtype=torch.bool)
        rows = self.conditions[0].holds(batch)
        for condition in self.conditions[1:]:
            rows = rows | condition.holds(batch).to(rows.device)
        return rows


@config
class Not(Condition):
    """Holds where its condition does not."""

    condition: Condition = field(kw_only=False)

    def __post_init__(self) -> None:
        _checked(self, (self.condition,))

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        return ~self.condition.holds(batch)


@config
class Compose(Operator):
    """Operators one after another; it ends early where one leaves no row."""

    operators: tuple[Operator, ...] = field(kw_only=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", tuple(self.operators))
        for operator in self.operators:
            if not callable(operator):
                raise TypeError(f"Compose: operators must be callable, got {operator!r}")

    def __call__(self, batch: Batch) -> Batch | None:
        """Applies all operators to a batch; None if no row is left."""
        for operator in self.operators:
            after = operator(batch)
            if after is None:
                return None
            batch = after
        return batch


def _checked(owner: Condition, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    conditions = tuple(conditions)
    for condition in conditions:
        if not isinstance(condition, Condition):
            raise TypeError(f"{type(owner).__name__}: conditions must be of Condition, got {condition!r}")
    return conditions
