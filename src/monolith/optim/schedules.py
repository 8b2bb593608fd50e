"""Learning-rate schedules, and the step of a running session.

The step is the seam between optimizers and sessions: a session that runs steps opens `global_step_from` around them.
Outside of one, `Shampoo` counts its own steps and a schedule has to be called with the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.optim.lr_scheduler import LRScheduler

from monolith.config import Config, config, require_at_least, require_positive
from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from torch.optim import Optimizer


_COUNTERS: ContextVar[tuple[Callable[[], int], ...]] = ContextVar("monolith_global_step", default=())
"""Counters of the sessions that are open in this context, the innermost last."""


@contextmanager
def global_step_from(counter: Callable[[], int]) -> Iterator[None]:
    """Makes `current_global_step` call `counter` inside. Nests; the innermost one counts. They may end in any order.

    Applies to this thread and to the contexts copied from it (``contextvars.copy_context``), not to other threads.
    """
    own = partial(counter)  # an object of this call, though the same counter may be given twice
    _COUNTERS.set((*_COUNTERS.get(), own))
    try:
        yield
    finally:
        _COUNTERS.set(tuple(opened for opened in _COUNTERS.get() if opened is not own))


def current_global_step() -> int | None:
    """Returns the step of the innermost `global_step_from`, or None outside of one."""
    counters = _COUNTERS.get()
    return counters[-1]() if counters else None


Schedule: TypeAlias = Callable[[int], float]
"""Takes a step (>= 0), returns the learning rate of that step."""


@config
class PolynomialDecay(Config):
    """From `initial` to `end` in `decay_steps` steps, upward as well as downward.

    ``(initial - end) * (1 - min(step, decay_steps) / decay_steps) ** power + end``. Two equal ones are equal objects
    with one text, so that slices with equal schedules can share a table.

    >>> schedule = PolynomialDecay(0.01, 10, 0.11)
    >>> [round(schedule(step), 4) for step in (0, 1, 2, 10, 99)]
    [0.01, 0.02, 0.03, 0.11, 0.11]
    """

    initial: float = field(kw_only=False)
    """The rate of step 0."""
    decay_steps: int = field(kw_only=False)
    """Steps from `initial` to `end`, >= 1."""
    end: float = field(default=0.0001, kw_only=False)
    """The rate from step `decay_steps` on."""
    power: float = 1.0
    """1 is a straight line; > 0."""
    cycle: bool = False
    """Do not stay at `end`, but start again from a `decay_steps` that is as many times longer as cycles have begun."""

    def __post_init__(self) -> None:
        require_at_least(self, 0, "initial", "end")
        require_at_least(self, 1, "decay_steps")
        require_positive(self, "power")

    def __call__(self, step: int | None = None) -> float:
        """Returns the rate of `step`, or of the session's global step if none is given.

        Raises:
            ValueError: the step is negative.
            FailedPreconditionError: no step is given and no session is open.
        """
        step = _global_step() if step is None else step
        if step < 0:
            raise ValueError(f"PolynomialDecay: step must be >= 0, got {step}")
        steps = self.decay_steps * (max(1, math.ceil(step / self.decay_steps)) if self.cycle else 1)
        rest = 1 - min(step, steps) / steps
        return (self.initial - self.end) * float(rest**self.power) + self.end

    def __str__(self) -> str:
        numbers = f"end={float(self.end)}, initial={float(self.initial)}, power={float(self.power)}"
        return f"PolynomialDecay(cycle={self.cycle}, decay_steps={self.decay_steps}, {numbers})"


def linear_warmup(learning_rate: float, warmup_steps: int) -> PolynomialDecay:
    """Returns ``learning_rate * min(step / warmup_steps, 1)``: 0 at step 0, in full from `warmup_steps` on.

    0 steps switch the warm-up off: the rate is constant.
    """
    if warmup_steps == 0:
        return PolynomialDecay(learning_rate, 1, learning_rate)
    return PolynomialDecay(0.0, warmup_steps, learning_rate)


class ScheduledLR(LRScheduler):
    """A torch scheduler that sets the learning rate of every group to its schedule's value.

    Call ``step()`` after each step of the optimizer. Its state dict holds the number of steps, not the schedules: a
    resumed run uses the schedules it is given.

    Args:
        optimizer: Any torch optimizer.
        schedules: One schedule for all groups, or one per group.
        last_epoch: The step to continue from; -1 starts at step 0.
    """

    def __init__(self, optimizer: Optimizer, schedules: Schedule | Sequence[Schedule], last_epoch: int = -1) -> None:
        groups = len(optimizer.param_groups)
        chosen = [schedules] * groups if callable(schedules) else list(schedules)
        if len(chosen) != groups:
            raise ValueError(
                f"ScheduledLR: expected one schedule, or one for each of the {groups} groups, got {len(chosen)}"
            )
        self._schedules = chosen
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Returns the rate of each group at the current step."""
        return [schedule(self.last_epoch) for schedule in self._schedules]

    def state_dict(self) -> dict[str, Any]:
        """Returns everything but the optimizer and the schedules."""
        return {name: value for name, value in super().state_dict().items() if name != "_schedules"}


def _global_step() -> int:
    step = current_global_step()
    if step is None:
        raise FailedPreconditionError(
            "PolynomialDecay: no session is open to read the global step from;"
            " give it the step, or drive the optimizer by ScheduledLR"
        )
    return step
