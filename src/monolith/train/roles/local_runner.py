"""Runs a task in this process by flat options: `local_train`, and functions of the command line."""

from __future__ import annotations

import dataclasses
import getpass
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from monolith.errors import FailedPreconditionError
from monolith.files import remove_folder
from monolith.train.compat.conversions import trains_in_step
from monolith.train.compat.derive_config import trainer_config_of
from monolith.train.compat.options import DistributedCpuTrainingConfig
from monolith.train.compat.refusal import require_effective, require_one_process
from monolith.train.roles.preparation import prepare_task, take_place
from monolith.train.strategies.single import SingleProcess
from monolith.train.trainer import Trainer

if TYPE_CHECKING:
    from monolith.ps.dense import DenseServers
    from monolith.train.compat.options import CpuTrainingConfig
    from monolith.train.config.input_options import NumberedStream
    from monolith.train.parameters.params import Params

_TOO_MANY_THREADS = 2**15
"""More threads than any machine has processors; torch would try, and crash the process."""


def local_train(  # noqa: PLR0913, PLR0917 - the signature of ByteDance Monolith
    params: Params,
    num_ps: int = 0,
    model_dir: str | None = None,
    steps: int = 100,
    save_checkpoints_steps: int = 50,
    profiling: bool = False,
    enable_embedding_prefetch: bool = True,
    enable_embedding_postpush: bool = True,
    remove_model_dir_if_exists: bool = True,
    only_feature_engineering: bool = False,
) -> Trainer:
    """Trains a task in this process, by default from scratch.

    Args:
        params: Parameters of the task.
        num_ps: Number of shards of exports with ``serving.export_mode`` DISTRIBUTED. No server is started: rows and
            checkpoints are the same with any number.
        model_dir: Directory of checkpoints; by default a folder with the task's name among the temporary files of the
            user.
        steps: Steps to train.
        save_checkpoints_steps: Steps between checkpoints.
        profiling: Trace the first ten steps, into ``profile/`` of the model directory.
        enable_embedding_prefetch: Read the rows of the next batch ahead.
        enable_embedding_postpush: Apply the gradients of rows concurrently with the next step.
        remove_model_dir_if_exists: Start with an empty directory, on any file system.
        only_feature_engineering: Write the batches to ``features/`` of the model directory, and train nothing.

    Returns:
        The trainer, to evaluate, predict or export with.
    """
    folder = model_dir or str(Path(tempfile.gettempdir()) / getpass.getuser() / params.name)
    options = DistributedCpuTrainingConfig(
        num_ps=num_ps,
        model_name=params.name,
        model_dir=folder,
        save_checkpoints_steps=save_checkpoints_steps,
        embedding_prefetch_capacity=int(enable_embedding_prefetch),
        enable_embedding_postpush=enable_embedding_postpush,
        only_feature_engineering=only_feature_engineering,
    )
    if profiling:
        options.profile_some_steps_from = 0
    trainer = make_trainer(options, params)  # refuses before anything is removed
    if remove_model_dir_if_exists:
        remove_folder(folder)
    trainer.train(steps=steps)
    return trainer


def make_trainer(
    options: CpuTrainingConfig,
    params: Params,
    *,
    deterministic: bool = False,
    servers: DenseServers | None = None,
    stream: NumberedStream | None = None,
) -> Trainer:
    """Returns a trainer for a task by flat options, and freezes them.

    For a `RunnerConfig` it first calls `prepare_run`. The task finds `stream` in its context.

    Raises:
        ValueError: an option that does nothing here, or that contradicts another one.
    """
    require_effective(options)
    if trains_in_step(options, params):
        take_place(options)
    else:
        require_one_process(options)
    flags = prepare_task(options, params)
    config = trainer_config_of(options, params)
    read = dataclasses.replace(config.input, stream=stream)
    if (dispatcher := flags.get("data_service_dispatcher")) is not None:
        read = dataclasses.replace(read, data_service_dispatcher=str(dispatcher))
    use_threads(options)
    return Trainer(
        params.instantiate(),
        dataclasses.replace(config, deterministic=deterministic, input=read),
        strategy=None if servers is None else SingleProcess(servers),
    )


def use_threads(options: CpuTrainingConfig) -> None:
    """Sets the number of threads of torch from the options; torch decides if they set none."""
    if not isinstance(options, DistributedCpuTrainingConfig):
        return
    threads = {
        "intra_op_parallelism_threads": torch.set_num_threads,
        "inter_op_parallelism_threads": torch.set_num_interop_threads,
    }
    for name, use in threads.items():
        number = getattr(options, name)
        if not options.is_set(name):
            continue
        if not 1 <= number < _TOO_MANY_THREADS:
            raise ValueError(f"option {name} must be from 1 to {_TOO_MANY_THREADS - 1}, got {number}")
        try:
            use(number)
        except RuntimeError as error:
            raise FailedPreconditionError(f"option {name}={number}: {str(error).splitlines()[0]}") from error
