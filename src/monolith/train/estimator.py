"""`Estimator`: trains, evaluates, predicts and exports a task by flat options, as in ByteDance Monolith."""

from __future__ import annotations

import copy
import importlib
from typing import TYPE_CHECKING, Any

from monolith.checkpoint import TrainState
from monolith.closing import Closing
from monolith.cluster import monolith_discovery
from monolith.export import ExportConfig
from monolith.files import join
from monolith.train.compat.conversions import trains_in_step
from monolith.train.compat.refusal import option_of_a_job
from monolith.train.compat.run_config import RunConfig
from monolith.train.config.job_config import JobProgramConfig
from monolith.train.export.exports_of_run import num_shards
from monolith.train.roles.distributed_runner import distributed_train
from monolith.train.roles.local_runner import make_trainer
from monolith.train.roles.sync_runner import distributed_sync_train
from monolith.train.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.hook import Hook
    from monolith.train.compat.options import RunnerConfig
    from monolith.train.parameters.params import Params
    from monolith.train.trainer import Trainer


class Estimator(Closing):
    """Trains, evaluates, predicts and exports a task, by the options of a `RunConfig`.

    It trains in this process, or as one process of a job if its options are not local and name a role, a number of
    workers or a discovery service. With ``enable_sync_training`` it is one rank of a launcher's run, whose rows are on
    the servers of a job if ``enable_partial_sync_training`` is set, too. `Trainer`, `distributed_train` and
    `distributed_sync_train` do the same without this class.

    Args:
        model: The task, its class, or its parameters.
        conf: Options; a `RunConfig` reads rows ahead and applies gradients a step later, see there.
        warm_start_from: Another model directory whose checkpoint to start from while this one has none.

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
        self.config: RunnerConfig = options.to_runner_config() if isinstance(options, RunConfig) else options
        """The options, which can change until the first call."""
        if warm_start_from is not None:
            self.config.restore_dir = warm_start_from
        params = model.p if isinstance(model, Task) else model.params() if isinstance(model, type) else model
        self._params = copy.deepcopy(params)
        self._trainer: Trainer | None = None

    @property
    def trainer(self) -> Trainer:
        """The trainer that does the work."""
        if self._trainer is None:
            self.config.is_local = True
            self._trainer = make_trainer(self.config, self._params)
        return self._trainer

    @property
    def is_job(self) -> bool:
        """Returns whether it trains as one process of a job."""
        options = self.config
        return not options.is_local and (options.server_type != "worker" or option_of_a_job(options) is not None)

    def train(self, steps: int | None = None, max_steps: int | None = None, hooks: Sequence[Hook] = ()) -> TrainState:
        """Trains as `Trainer.train` does, or as `distributed_train` in a job.

        Returns:
            The trained state; in a job, whose servers have it, only the step: `evaluate` and `predict` read its last
            checkpoint.
        """
        in_step = trains_in_step(self.config, self._params)
        if in_step and not self.config.enable_partial_sync_training:
            return self._train_in_step(steps, max_steps, hooks)
        if not self.is_job:
            return self.trainer.train(steps=steps, max_steps=max_steps, hooks=hooks)
        if steps is not None:
            raise ValueError(f"Estimator.train: a job ends at a global step, got steps={steps}; give max_steps")
        with monolith_discovery(self.config.runner_settings()) as discovery:
            assert discovery is not None  # noqa: S101 - the options are not local
            self._trainer = distributed_train(
                self.config, discovery, self._params, user_hooks=hooks, settings=JobProgramConfig(max_steps=max_steps)
            )
        return TrainState(global_step=0 if self._trainer is None else self._trainer.global_step)

    def _train_in_step(self, steps: int | None, max_steps: int | None, hooks: Sequence[Hook]) -> TrainState:
        if steps is not None:
            raise ValueError(f"Estimator.train: ranks end at a global step, got steps={steps}; give max_steps")
        self._trainer = distributed_sync_train(
            self.config, self._params, user_hooks=hooks, settings=JobProgramConfig(max_steps=max_steps)
        )
        return TrainState(global_step=self._trainer.global_step)

    def evaluate(self, steps: int | None = None, hooks: Sequence[Hook] = ()) -> dict[str, float]:
        """Evaluates as `Trainer.evaluate` does."""
        return self.trainer.evaluate(steps=steps, hooks=hooks)

    def predict(self, steps: int | None = None, hooks: Sequence[Hook] = ()) -> Iterator[Any]:
        """Predicts as `Trainer.predict` does; upstream discarded its predictions."""
        return self.trainer.predict(steps=steps, hooks=hooks)

    def export_saved_model(
        self, name: str | None = None, *, example: Any = None, dense_only: bool = False, version: int | None = None
    ) -> str:
        """Writes a version of the model below the model directory, and returns its folder.

        In one piece, or with ``serving.export_mode`` DISTRIBUTED in as many parts as `num_ps`, or as ranks with rows.
        Requests may have any number of examples.

        Args:
            name: Name of the folder of all versions; by default from the task's parameters
                (``serving.export_dir_base``).
            example: See `Trainer.export`.
            dense_only: Only graph and weights; rows of the previous version stay.
            version: Version number; None: Unix seconds, above all existing versions.
        """
        folder = name or str(self._params.serving.export_dir_base)
        config = self.trainer.config
        shards = num_shards(
            self._params, config, share_rows=config.sync is not None and not self.config.enable_partial_sync_training
        )
        options = ExportConfig(
            version=version, shards=shards, dense_only=dense_only, skip_zero=config.exporting.skip_zero
        )
        return self.trainer.export(join(self.config.model_dir or ".", folder), example=example, options=options)

    def import_saved_model(self, path: str | None = None) -> Any:
        """Returns a `monolith.serving.Predictor` of the newest export below the model directory, or of that at a path.

        `monolith.serving.import_saved_model` is upstream's function of this name.
        """
        folder = join(self.config.model_dir or ".", str(self._params.serving.export_dir_base))
        # Serving is a layer above training; import it only on demand.
        return importlib.import_module("monolith.serving").Predictor(folder if path is None else path)

    def close(self) -> None:
        """Releases the trained state."""
        self._trainer = None
