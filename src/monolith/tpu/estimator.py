"""`TPUEstimator`: trains and evaluates a task by JAX, with the parts that every other run has."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from monolith.files import basename
from monolith.train import Trainer
from monolith.train.config import RestoringConfig, TrainerConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.hook import Hook
    from monolith.tpu.jax_task import JaxTask
    from monolith.train import SessionState

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingConfigSpec:
    """The vocabulary tables of a run, and how their rows reach a step."""

    feature_to_config: Mapping[str, Any]
    """Feature -> the table that it reads."""
    table_to_config: Mapping[str, Any]
    """Table -> its size and how its rows learn."""
    partition_strategy: str
    pipeline_execution: bool
    """Whether rows are one step old."""


@dataclasses.dataclass(slots=True, eq=False)
class TPUEstimator:
    """A task on the devices of JAX. One thread uses it.

    Args of the constructor are its fields.
    """

    task: JaxTask
    config: TrainerConfig
    """Config of training."""
    train_batch_size: int | None
    """Examples of a step over all replicas; None: as the task makes its batches."""
    eval_batch_size: int | None
    """Batch size of evaluations."""
    embedding_config_spec: EmbeddingConfigSpec | None = None
    trainer: Trainer | None = None
    """The last trainer."""

    def train(self, max_steps: int | None = None, *, hooks: Sequence[Hook] = ()) -> SessionState:
        """Trains to the end of the data or to a global step, from the newest checkpoint; see `Trainer.train`.

        A run that already has its last checkpoint trains nothing more.
        """
        self.trainer = Trainer(self.task, self.config)
        return self.trainer.train(max_steps=max_steps, hooks=hooks)

    def evaluate(self, steps: int | None = None, checkpoint_path: str | None = None) -> dict[str, float]:
        """Returns means over `steps` steps of the evaluation input, for a checkpoint or for the newest one.

        Raises:
            NotFoundError: there is no checkpoint.
        """
        name = None if checkpoint_path is None else basename(checkpoint_path)
        config = dataclasses.replace(
            TrainerConfig(model_dir=self.config.model_dir, deterministic=self.config.deterministic),
            restoring=RestoringConfig(checkpoint=name),
        )
        return Trainer(self.task, config).evaluate(steps=steps)
