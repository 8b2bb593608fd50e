"""Result of a step, for hooks and for the loop that ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from monolith.tensors import Ragged

if TYPE_CHECKING:
    from monolith.train.task import Spec


@dataclass(slots=True, eq=False)  # not frozen: one is made for each step, and that takes four times as long
class StepResult:
    """The step that ran last. Nothing in it is differentiable any more."""

    loss: Tensor | None
    """A scalar; None where the task computed none."""
    predictions: Any
    """Predictions as returned by the task: a tensor, or several by name."""
    label: Any
    """Labels as returned by the task."""
    num_examples: int
    """Examples of the batch; 0 if unknown."""

    @classmethod
    def of(cls, spec: Spec, features: Any) -> StepResult:
        """Makes the result of what a task returned for a batch."""
        loss = None if spec.loss is None else spec.loss.detach()
        return cls(loss, _detached(spec.predictions), _detached(spec.label), num_examples_of(features))


def num_examples_of(features: Any) -> int:
    """Returns the number of rows of a batch: its own count, else the length of its first column."""
    if isinstance(features, Tensor):
        return features.shape[0] if features.ndim else 1
    if type(features) is dict and features:  # the usual batch, without what an abstract class costs
        return num_examples_of(next(iter(features.values())))
    rows = getattr(features, "num_rows", None)
    if isinstance(rows, int):
        return rows
    if isinstance(features, Mapping):
        return next((num_examples_of(value) for value in features.values()), 0)
    if isinstance(features, list | tuple):
        return num_examples_of(features[0]) if features and isinstance(features[0], Tensor | Ragged) else len(features)
    return 0


def _detached(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.detach() if values.requires_grad else values
    if isinstance(values, Mapping):
        return {name: _detached(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_detached(value) for value in values]
    return values
