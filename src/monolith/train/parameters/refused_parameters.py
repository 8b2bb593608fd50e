"""Refuses parameters of a task that would do nothing, by the table of `compat.task_parameters`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.train.compat.effects import Refused
from monolith.train.compat.task_parameters import PARAMETERS

if TYPE_CHECKING:
    from monolith.train.parameters.params import Params

__all__ = ["require_effective_parameters"]


def require_effective_parameters(params: Params, defaults: Params) -> None:
    """Refuses parameters that would have no effect.

    Args:
        params: Parameters of a task.
        defaults: Parameters that every task declares.

    Raises:
        ValueError: names the parameter, its value and the reason.
    """
    for each in PARAMETERS:
        if not isinstance(each.effect, Refused):
            continue
        value, default = params.get(each.name), defaults.get(each.name)
        if value != default:
            raise ValueError(
                f"task {params.name}: parameter {each.name}={value!r} is refused: {each.effect.reason}; leave it at"
                f" {default!r}"
            )
