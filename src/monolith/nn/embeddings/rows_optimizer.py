"""The steps of rows as an optimizer of torch, and the learning rate of every segment at a step."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.optim import Optimizer

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from monolith.nn.embeddings.embeddings import Embeddings
    from monolith.nn.embeddings.merge import LearnedSegment, MergedTable


class RowsOptimizer(Optimizer):
    """Steps and clears the rows of an `Embeddings`, together with a dense optimizer if it has one.

    The slots define how rows learn, and at which rates; `lr` of the group of rows, 1 at first, is a factor of
    all these rates, through which schedulers of torch change them. Optimizer state of rows is saved with the rows.

    A `GradScaler` of torch unscales and skips it like any optimizer: the parameter of the group of rows has their norm
    as its gradient (`RowGradient`).

    Args:
        module: The module of the rows.
        beside: A dense optimizer that is stepped first, for trainers that take one optimizer only. Its groups follow
            the one of rows, and are its own: a scheduler changes both.

    >>> from monolith.nn import Embeddings, Slot
    >>> emb = Embeddings({"user": Slot(dim=2)})
    >>> optimizer = emb.optimizer()
    >>> emb({"user": torch.tensor([7, 8])})["user"].sum().backward()
    >>> optimizer.step()
    >>> optimizer.zero_grad()
    >>> emb.num_rows
    2
    """

    def __init__(self, module: Embeddings, beside: Optimizer | None = None) -> None:
        if beside is not None and not isinstance(beside, Optimizer):
            raise TypeError(f"optimizer: `beside` must be an optimizer of torch, got {type(beside).__name__}")
        self._module = module
        self._beside = beside
        self._has_warned = False
        super().__init__([module.row_gradient], {"lr": 1.0})
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes the step of the dense optimizer, if there is one, then that of the rows, if they have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._beside is not None:
            self._beside.step()
        taken = self._module.take_step(rate_factor=float(self.param_groups[0]["lr"]))
        if taken is not None:
            taken.apply()
        else:
            self._warn_of_cleared_gradients()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of rows and of the dense optimizer."""
        self._module.zero_grad(set_to_none)
        if self._beside is not None:
            self._beside.zero_grad(set_to_none)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._beside is not None:
            self._beside.__setstate__({"state": self.state, "param_groups": self.param_groups[1:]})
        self._share()

    def _share(self) -> None:
        """Shares groups and state with the dense optimizer, which keeps reading and writing its own."""
        if self._beside is not None:
            self.param_groups = [self.param_groups[0], *self._beside.param_groups]
            self.state = self._beside.state

    def _warn_of_cleared_gradients(self) -> None:
        num_cleared = self._module.num_cleared
        if num_cleared and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"rows: the gradients of {num_cleared} backward passes were cleared before the step, by zero_grad() of"
                " the model or of another optimizer with all its parameters; step all optimizers before you clear",
                stacklevel=3,
            )


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
        return [_rate(segment, step) for segment in self._segments]


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
