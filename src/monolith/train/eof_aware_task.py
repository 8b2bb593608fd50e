"""A task whose batches flag the last one, so that the ranks of a synchronous run can end together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.hooks.end_of_data import EofHook, flag_last, split_flag
from monolith.nn.embeddings.batch_context import current_batch_context
from monolith.train.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn, optim

    from monolith.data.dataset import Dataset
    from monolith.hook import Hook
    from monolith.train.task import Mode, Spec

__all__ = ["EofAwareTask"]


class EofAwareTask(Task):
    """A task whose batches flag whether they are the last one, and whose ranks stop together.

    The flag travels with the features, as one more key ``__EofAwareTask_eof`` of a mapping; features that are not a
    mapping travel as ``"1"``, the flag as ``"2"``. The wrapped task sees its features as they were.

    Args:
        task: The task to run. Its `params`, context and modules are shared.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task.p)
        self._task = task
        self.ctx = task.ctx
        self._last = False

    @property
    def task(self) -> Task:
        """The wrapped task."""
        return self._task

    def input_fn(self, mode: Mode) -> Dataset[Any] | Iterable[Any]:
        """Returns the batches of the task, one read ahead, with their flags."""
        return flag_last(self._task.input_fn(mode))

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Calls the task with its own features, and remembers the flag."""
        features, self._last = split_flag(features)
        batch_context = current_batch_context()
        if batch_context is not None:
            batch_context.features = features  # what was read ahead for this batch is for what the task sees
        return self._task.model_fn(features, mode)

    def training_hooks(self) -> Sequence[Hook]:
        """Returns the hook that stops all ranks, then those of the task."""
        return (EofHook(lambda: self._last), *self._task.training_hooks())

    # Delegated to the task

    def build(self) -> nn.Module | None:
        """Delegates to the task."""
        return self._task.build()

    def make_model(self) -> nn.Module:
        """Delegates to the task."""
        return self._task.make_model()

    def optimizers(self, model: nn.Module) -> optim.Optimizer | Mapping[str, optim.Optimizer] | None:
        """Delegates to the task."""
        return self._task.optimizers(model)

    def schedules(self, optimizers: Mapping[str, optim.Optimizer]) -> Mapping[str, Any]:
        """Delegates to the task."""
        return self._task.schedules(optimizers)

    def training_chief_hooks(self) -> Sequence[Hook]:
        """Delegates to the task."""
        return self._task.training_chief_hooks()

    def signatures(self) -> Mapping[str, Sequence[str]]:
        """Delegates to the task."""
        return self._task.signatures()
