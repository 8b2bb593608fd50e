"""`Estimator`: the four verbs over a task and flat options, as the original's users know them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

from monolith.files import join
from monolith.train.compat.run_config import RunConfig
from monolith.train.local_runner import make_trainer
from monolith.train.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.checkpoint import TrainState
    from monolith.hook import Hook
    from monolith.train.compat.options import RunnerConfig
    from monolith.train.params import Params
    from monolith.train.trainer import Trainer

__all__ = ["Estimator"]


class Estimator:
    """Trains, evaluates, predicts and exports a task in this process, by the options of a `RunConfig`.

    `Trainer` is the same without flat options.

    Args:
        model: The task, its class, or its parameters.
        conf: How it is run; a `RunConfig` reads rows ahead and applies gradients a step later, see there.
        warm_start_from: Another model directory whose checkpoint to begin with, while this one has none.

    >>> import tempfile
    >>> from monolith.testing import ExampleTask
    >>> with tempfile.TemporaryDirectory() as folder, Estimator(ExampleTask, RunConfig(model_dir=folder)) as estimator:
    ...     step = estimator.train(steps=5).global_step
    ...     sorted(estimator.evaluate(steps=1))
    ['auc', 'examples', 'global_step', 'loss']
    """

    def __init__(
        self,
        model: Task | type[Task] | Params,
        conf: RunConfig | RunnerConfig | None = None,
        warm_start_from: str | None = None,
    ) -> None:
        options = RunConfig() if conf is None else conf
        self._options = options.to_runner_config() if isinstance(options, RunConfig) else options
        self._options.is_local = True
        if warm_start_from is not None:
            self._options.restore_dir = warm_start_from
        params = model.p if isinstance(model, Task) else model.params() if isinstance(model, type) else model
        self._params = copy.deepcopy(params)
        self._trainer: Trainer | None = None

    @property
    def config(self) -> RunnerConfig:
        """Its options, which can change until the first call."""
        return self._options

    @property
    def trainer(self) -> Trainer:
        """What does the work."""
        if self._trainer is None:
            self._trainer = make_trainer(self._options, self._params)
        return self._trainer

    def train(self, steps: int | None = None, max_steps: int | None = None, hooks: Sequence[Hook] = ()) -> TrainState:
        """See `Trainer.train`."""
        return self.trainer.train(steps=steps, max_steps=max_steps, hooks=hooks)

    def evaluate(self, steps: int | None = None, hooks: Sequence[Hook] = ()) -> dict[str, float]:
        """See `Trainer.evaluate`."""
        return self.trainer.evaluate(steps=steps, hooks=hooks)

    def predict(self, steps: int | None = None, hooks: Sequence[Hook] = ()) -> Iterator[Any]:
        """See `Trainer.predict`; the original threw its predictions away."""
        return self.trainer.predict(steps=steps, hooks=hooks)

    def export_saved_model(self, name: str | None = None, *, example: Any = None) -> str:
        """Writes weights, tables and signatures below the model directory, and returns the prefix.

        Args:
            name: Of the folder; by default as the task's parameters say (``serving.export_dir_base``).
            example: See `Trainer.export`.
        """
        folder = name or str(self._params.serving.export_dir_base)
        return self.trainer.export(join(self._options.model_dir or ".", folder), example=example)

    def close(self) -> None:
        """Forgets what it trained."""
        self._trainer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
