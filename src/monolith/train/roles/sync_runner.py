"""`distributed_sync_train`: one rank of a synchronous run, as torchrun or mpirun has started it."""

from __future__ import annotations

import dataclasses
import logging
import signal
from typing import TYPE_CHECKING

from monolith import collective
from monolith.hooks import ParameterSyncHook
from monolith.train._run_hooks import require_publishing
from monolith.train.compat.conversions import mode_of
from monolith.train.compat.derive_config import trainer_config_of
from monolith.train.config.job_config import JobProgramConfig
from monolith.train.config.trainer_config import require_training
from monolith.train.roles.local_runner import use_threads
from monolith.train.roles.preparation import on_signals, prepare_task, take_place
from monolith.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.hook import Hook
    from monolith.hooks import SyncBackend
    from monolith.train.compat.options import DistributedCpuTrainingConfig
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.parameters.params import Params

_log = logging.getLogger(__name__)


def distributed_sync_train(
    config: DistributedCpuTrainingConfig,
    params: Params,
    sync_backend: SyncBackend | None = None,
    user_hooks: Sequence[Hook] = (),
    *,
    settings: JobProgramConfig | None = None,
) -> Trainer:
    """Trains a task in step with the other ranks of a launcher's run; without a launcher it is a run of one.

    Every rank calls it with the same options and reads its own share of the input. Each step applies the batches of
    all ranks: rows by the sum of their gradients, dense weights by the mean. A rank whose input ends earlier continues
    without batches of its own until all inputs have ended. A failure of any rank ends all; after a restart with any
    number of ranks they resume from the last checkpoint.

    Args:
        config: ``index`` is the rank and ``num_workers`` the number of ranks; both are optional.
        params: Parameters of the task.
        sync_backend: Pushes what the run publishes to serving, by a `ParameterSyncHook` for each shard; rank r
            has the shards i with i % ranks == r. None: nothing is pushed.
        user_hooks: Attached on every rank.
        settings: Overrides for custom programs.

    Returns:
        The trainer, which evaluates and predicts from the last checkpoint.

    Raises:
        ValueError: an option contradicts the launcher or another option, or has no effect.
        OpError: another rank has ended, or has another model.
    """
    settings = JobProgramConfig() if settings is None else settings
    require_training(mode_of(config.mode), "distributed_sync_train")
    prepare_task(config, params)
    if not config.is_set("enable_sync_training"):
        config.enable_sync_training = True
    take_place(config)
    trainer_config = trainer_config_of(config, params)
    use_threads(config)
    if settings.deterministic:
        trainer_config = dataclasses.replace(trainer_config, deterministic=True)
    if sync_backend is not None:
        require_publishing(trainer_config, "distributed_sync_train")
    hooks = [*_push_hooks(sync_backend, trainer_config), *user_hooks]
    trainer = Trainer(params.instantiate(), trainer_config, hooks=hooks)
    with on_signals(lambda _: _on_signal(trainer), signals=(signal.SIGINT, signal.SIGTERM)):
        trainer.train(max_steps=settings.max_steps)
    trainer.release_state()
    return trainer


def _push_hooks(backend: SyncBackend | None, config: TrainerConfig) -> list[Hook]:
    if backend is None:
        return []
    shards = range(config.worker_index, backend.num_shards, config.num_workers)
    return [ParameterSyncHook(backend, index) for index in shards]


def _on_signal(trainer: Trainer) -> None:
    _log.warning("rank %d: requests all ranks to stop; the next signal ends this process", collective.rank())
    trainer.request_stop()
