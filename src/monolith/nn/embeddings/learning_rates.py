"""The learning rate of every segment of every table at a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.nn.embeddings.merge import LearnedSegment, MergedTable


class _Named(NamedTuple):
    slots: tuple[str, ...]
    segment: LearnedSegment


class LearningRates:
    """Numbers, schedules and optimizers, in the order in which a store takes their rates."""

    def __init__(self, tables: Sequence[MergedTable]) -> None:
        """Takes the tables in sorted-name order."""
        self._segments = [_Named(tuple(table.slots), segment) for table in tables for segment in table.segments]
        self._last: tuple[list[float], Tensor] = [], torch.empty(0)

    def at(self, step: int) -> Tensor:
        """Returns float32 [S], read-only: the tensor of the last step where no rate has changed.

        Raises:
            InvalidArgumentError: a schedule that gives no usable number; names its slots.
        """
        numbers, last = self.numbers(step), self._last
        if numbers != last[0]:
            last = self._last = numbers, torch.tensor(numbers, dtype=torch.float32)
        return last[1]

    def numbers(self, step: int) -> list[float]:
        """Returns the rates of a step as numbers."""
        return [_rate(each, step) for each in self._segments]


def _rate(named: _Named, step: int) -> float:
    rate = named.segment.rate
    if rate is None:
        return named.segment.segment.optimizer.learning_rate_at(step)
    number = rate(step) if callable(rate) else rate
    try:
        value = float(number)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise InvalidArgumentError(
            f"slots {', '.join(map(repr, named.slots))}: the learning rate of step {step} must be a finite number >= 0,"
            f" got {number!r} from {rate!r}"
        )
    return value
