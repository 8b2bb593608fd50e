"""Hooks by which the workers of a job keep together, in the order in which they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.hook import Hook
from monolith.hooks.barrier import BarrierHook, BarrierSaverListener
from monolith.hooks.slow_start import CustomGlobalStepWaiterHook, slow_start_step
from monolith.hooks.worker_sync import TrainingHooksHelper

if TYPE_CHECKING:
    from monolith.hook import StepContext
    from monolith.hooks.saver_listener import SaveGuard
    from monolith.train.job_part import JobPart

__all__ = ["JobHook", "chief_job_hooks", "save_guards", "worker_job_hooks"]


def chief_job_hooks(part: JobPart) -> list[Hook]:
    """Returns the hooks before the savers: health of the servers, and that the model is restored."""
    hooks: list[Hook] = []
    if part.health_hook is not None:
        hooks.append(part.health_hook)
    return [*hooks, *_in_step(part).training_chief_hooks]


def save_guards(part: JobPart) -> list[SaveGuard]:
    """Returns the guards around each save of the chief."""
    return [
        BarrierSaverListener(part.client.barrier, max_pending_seconds=part.settings.max_pending_seconds_for_barrier)
    ]


def worker_job_hooks(part: JobPart) -> list[Hook]:
    """Returns the hooks of every worker: heartbeat, barrier, delayed start, and end of the job."""
    index, settings = part.client.index, part.settings
    hooks: list[Hook] = [*_in_step(part).training_hooks, BarrierHook(index, part.client.barrier)]
    if settings.slow_start_steps and index:
        hooks.append(
            CustomGlobalStepWaiterHook(
                slow_start_step(settings.slow_start_steps, index),
                max_non_tide_wait_minute=settings.max_slow_start_wait_minutes,
                global_step=lambda: part.client.state.global_step,
            )
        )
    return [*hooks, JobHook(part)]


def _in_step(part: JobPart) -> TrainingHooksHelper:
    return TrainingHooksHelper(
        True,
        part.client.num_workers,
        part.client.index,
        chief_timeout_seconds=part.settings.chief_timeout_seconds,
        flags=part.client.flags,
    )


class JobHook(Hook):
    """Reports this worker's progress to the job, and stops it with the job, or when its index was reassigned."""

    def __init__(self, part: JobPart) -> None:
        self._part = part

    def before_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Checks the last received state; makes no call."""
        self._part.client.require_connected()

    def after_run(self, context: StepContext) -> None:
        """Records the progress to report with the next heartbeat."""
        self._part.client.set_progress(context.global_step)
