"""Saves and stops of a trainer by files in its model directory; see `MarkerFilesConfig`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monolith.hooks.marker_files import SyncTrainingForceDumpHook, SyncTrainingSaverControlHook
from monolith.hooks.request_time import ReqTimeControlDumpHook
from monolith.hooks.timer import SecondOrStepTimerWithTideSetting

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.hook import Hook
    from monolith.hooks.marker_files import SwitchedTimer
    from monolith.train.config.trainer_config import TrainerConfig

__all__ = ["marker_hooks", "on_demand_timer"]


def on_demand_timer() -> SecondOrStepTimerWithTideSetting:
    """Returns a timer that is due only on request."""
    return SecondOrStepTimerWithTideSetting(every_steps=sys.maxsize)


def marker_hooks(
    config: TrainerConfig, full: SwitchedTimer | None = None, dense: SwitchedTimer | None = None, *, clock: Clock
) -> list[Hook]:
    """Returns the hooks that poll for files. They come before the savers, which then save at the same step.

    Every rank has them, even one that does not save: the ranks make the same calls, and stop together.

    Args:
        config: Which files to poll for, and where.
        full: Timer of full checkpoints; None if this process saves none.
        dense: Timer of checkpoints without tables.
        clock: Time of day.
    """
    files, model_dir = config.saving.marker_files, config.model_dir
    if files is None or model_dir is None:
        return []
    full, dense = full or on_demand_timer(), dense or on_demand_timer()
    hooks: list[Hook] = []
    if files.dump_look_steps is not None:
        hooks.append(SyncTrainingForceDumpHook(model_dir, full, step_interval=files.dump_look_steps, clock=clock))
    if files.online_look_steps is not None:
        hooks.append(SyncTrainingSaverControlHook(model_dir, dense, step_interval=files.online_look_steps))
    if files.limit_look_steps is not None:
        hooks.append(ReqTimeControlDumpHook(model_dir, full, step_interval=files.limit_look_steps))
    return hooks
