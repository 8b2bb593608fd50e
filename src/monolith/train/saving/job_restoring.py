"""Initial state of the workers of a job: the chief restores what servers have lost, and the others wait for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.checkpoint.restore import Parts
from monolith.job import OF_ONE_PROCESS
from monolith.train.saving.restoring import restore_to_train
from monolith.train.saving.server_rows import empty_rows, owners_of, set_initialized

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.checkpoint import Saver, TrainState
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.strategies.servers import ParameterServers

_log = logging.getLogger(__name__)

JOB = "job"
"""Key of the coordinator's state in a checkpoint: files assigned to workers, and finished workers."""


def restore_in_job(
    part: ParameterServers,
    config: TrainerConfig,
    saver: Saver | None,
    state: TrainState,
    *,
    give_up: Callable[[], bool],
) -> None:
    """Restores a worker's session after it was built; returns when it may train."""
    if not part.is_chief:
        part.wait_until_restored([owner.uninitialized for owner in owners_of(state)], give_up)
        begin_at(state, part.client.state.global_step)
        return
    owners = owners_of(state)
    lost = sorted({server for owner in owners for server in owner.uninitialized()})
    if part.client.state.restored and not lost:
        _log.info("the servers have the model: resuming at step %d", part.client.state.global_step)
        _restore_some(saver, state, [])
        begin_at(state, part.client.state.global_step)
        return
    has_survivors = part.client.state.restored and len(lost) < part.cluster.num_ps
    if part.settings.partial_recovery and has_survivors and _restore_some(saver, state, lost):
        _log.warning("servers %s were restored from the last checkpoint; the others keep what they have", lost)
        set_initialized(owners)
        begin_at(state, part.client.state.global_step)
        return
    if lost and has_survivors:
        _log.warning("servers %s have lost their state: all go back to the last checkpoint", lost)
    _restore_all(part, config, saver, state)
    set_initialized(owners)
    # The number of a checkpoint is the step that its chief had seen; clocks are more precise.
    is_known = getattr(state.extra.get(JOB), "knows_step", False)
    part.client.set_restored(None if is_known else state.global_step)
    state.global_step = part.client.state.global_step


def begin_at(state: TrainState, global_step: int) -> None:
    """Continues at a step that other workers have reached, and advances schedules to it."""
    before, state.global_step = state.global_step, global_step
    if state.schedules and global_step > before:
        for schedule in state.schedules.values():
            for _ in range(global_step - int(getattr(schedule, "last_epoch", before))):
                schedule.step()  # type: ignore[attr-defined]  # a schedule has one


def _restore_some(saver: Saver | None, state: TrainState, lost: list[int]) -> bool:
    """Restores these servers, and what is in this process, from the newest checkpoint; False: there is none."""
    if saver is None:
        return False
    job = state.extra.pop(JOB, None)  # it stays as it is: none of it was lost
    parts = Parts.of_owners(dict.fromkeys(state.stores, lost), None if state.dense is None else lost)
    try:
        return saver.restore(state, parts=parts) is not None
    finally:
        if job is not None:
            state.extra[JOB] = job


def _restore_all(part: ParameterServers, config: TrainerConfig, saver: Saver | None, state: TrainState) -> None:
    part.client.reset()  # or what was finished and taken since the checkpoint would count
    saved = part.client.saved
    saved.was_loaded = False
    is_restored = saver is not None and restore_to_train(config, saver, state, clock=part.clock)
    if is_restored:
        if state.applied and not saved.was_loaded:
            saved.load_state_dict(OF_ONE_PROCESS)
        return
    empty_rows(state)
    if state.dense is not None:
        state.dense.scatter(state.dense.first_state())  # type: ignore[attr-defined]  # a DenseClient has it
    state.applied.clear()
    state.global_step = 0
