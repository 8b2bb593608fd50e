"""Initial state of a trainer: the checkpoint that its config names, else the newest one."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from monolith.checkpoint import (
    Saver,
    copy_checkpoint_state,
    get_checkpoint_state,
    split_path,
    wait_for_monolith_checkpoint,
)
from monolith.errors import NotFoundError
from monolith.hooks import custom_restore_options
from monolith.train._session_parts import SessionState
from monolith.train.input.jobs import LocalJob

if TYPE_CHECKING:
    from monolith.checkpoint import RestoreConfig, TrainState
    from monolith.clock import Clock
    from monolith.train.config.trainer_config import TrainerConfig

_log = logging.getLogger(__name__)


def restore_to_train(config: TrainerConfig, saver: Saver, state: TrainState, *, clock: Clock) -> bool:
    """Restores what a run has saved, to continue training. Returns False if there is nothing to restore."""
    restoring, protocol = config.restoring, saver.protocol
    if restoring.from_dir is not None and (protocol.is_collective or restoring.alone or config.worker_index == 0):
        protocol.run_on_writers("copying a checkpoint", lambda: _copy(config, saver))
    elif restoring.from_dir is not None:
        wait_for_monolith_checkpoint(saver.model_dir, clock=clock)
    path = protocol.run_on_first("the checkpoint", lambda: _named_checkpoint(config, saver.model_dir, training=True))
    restored = saver.restore(state, path, options=_left_by_the_task(state))
    if restored is None:
        return False
    _log.info("session: resumes from %s", restored.path)
    if restoring.restart_input and split_path(restored.path)[0] != saver.model_dir:
        _restart_input(state)
    elif state.global_step and not any(stamp.position for stamp in state.applied.values()):
        _log.warning(
            "session: %s has no position of the input, which starts over; let input_fn return a Dataset to resume"
            " at that position",
            restored.path,
        )
    return True


def _restart_input(state: TrainState) -> None:
    """Numbers and times of batches stay: rows of the checkpoint are of these batches."""
    state.applied = {worker: replace(stamp, position=b"") for worker, stamp in state.applied.items()}
    for job in state.extra.values():
        if isinstance(job, LocalJob):
            job.reset()


def _copy(config: TrainerConfig, saver: Saver) -> None:
    source = saver.source_of(str(config.restoring.from_dir))
    copy_checkpoint_state(source, saver.model_dir, restore_ckpt=config.restoring.checkpoint)


def restore_to_look(config: TrainerConfig, state: TrainState, *, name: str) -> None:
    """Puts back what a run has saved, to evaluate, predict or export."""
    if config.model_dir is None:
        raise NotFoundError(f"{name}: there is nothing trained yet, and no model_dir to restore from; train first")
    with Saver(config.model_dir if config.sync is None else config.sync.checkpoint_dir(config.model_dir)) as saver:
        path = _named_checkpoint(config, saver.model_dir, training=False)
        if saver.restore(state, path, options=_left_by_the_task(state)) is None:
            raise NotFoundError(f"'{config.model_dir}' has no checkpoint; train first")


def _named_checkpoint(config: TrainerConfig, model_dir: str, *, training: bool) -> str | None:
    """Returns the checkpoint that the config names; None if it names none, or if training has applied it before."""
    name = config.restoring.checkpoint
    if name is None:
        return None
    chosen = get_checkpoint_state(model_dir, restore_ckpt=name, training=training)
    path = None if chosen is None else chosen.model_checkpoint_path
    return path if path is not None and _base_name(path) == _base_name(name) else None


def _left_by_the_task(state: TrainState) -> RestoreConfig | None:
    """Returns what `build` has put into the collection ``CUSTOM_RESTORE_OP``; None: use the config."""
    session = state.session if isinstance(state, SessionState) else None
    return None if session is None else custom_restore_options(session)


def _base_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
