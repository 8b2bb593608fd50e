"""Hooks of the chief of a run: saving, reports and profiles, by its config."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.checkpoint import Saver
from monolith.clock import SystemClock
from monolith.cluster import BarrierOp
from monolith.files import join
from monolith.hook import Hook, StepContext
from monolith.hooks.checkpoint_saver import NoFirstSaveCheckpointSaverHook
from monolith.hooks.evaluation import Evaluation
from monolith.hooks.eviction import EvictionHook, evict_expired
from monolith.hooks.nan_guard import NanTensorHook
from monolith.hooks.profiling import ProfilerHook, ProfileWindows
from monolith.hooks.saver_listener import SaverListener
from monolith.hooks.server import ServerCredentials, ServerHook
from monolith.hooks.step_timing import StepCounterHook
from monolith.hooks.throughput import ThroughputMetricHook
from monolith.hooks.timer import SecondOrStepTimerWithTideSetting
from monolith.train._job_hooks import save_guards
from monolith.train._marker_hooks import marker_hooks, on_demand_timer
from monolith.train._rank_run import rank_listeners
from monolith.train._rank_saver import RankSaver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.clock import Clock
    from monolith.cluster import Barrier
    from monolith.hook import HookedSession
    from monolith.hooks.saver_listener import SaveGuard
    from monolith.hooks.timer import SecondOrStepTimer
    from monolith.train.config.trainer_config import ControlConfig, SavingConfig, TablesConfig, TrainerConfig
    from monolith.train.job_part import JobPart
    from monolith.train.rank_part import RankPart

__all__ = ["DENSE_ONLY", "chief_hooks", "eviction_hooks", "report_hooks", "save_if_due"]

_log = logging.getLogger(__name__)

DENSE_ONLY = "dense_only"
"""The folder of checkpoints without tables, in the model directory."""


def _no_listeners(_: Saver) -> Sequence[SaverListener]:
    return ()


def chief_hooks(
    config: TrainerConfig,
    saver: Saver | None,
    *,
    model_name: str,
    clock: Clock | None = None,
    job: JobPart | None = None,
    ranks: RankPart | None = None,
    exports: Callable[[Saver], Sequence[SaverListener]] = _no_listeners,
) -> list[Hook]:
    """Files that ask for saves, saver, dense-only saver, controller and profiler, then metrics."""
    hooks: list[Hook] = []
    if saver is not None and config.model_dir is not None:
        # Before the saver, so that a model whose loss is no number any more is not saved.
        hooks.append(NanTensorHook())
        timers = _of_ranks(_timer(config.saving), ranks), _of_ranks(_dense_timer(config.saving), ranks)
        hooks += marker_hooks(config, *timers, clock=clock or SystemClock())
        guards = [] if job is None else save_guards(job)
        saving = _saving_hooks(
            config.saving,
            saver,
            *timers,
            guards=guards,
            dense_guards=guards if config.job.barrier_at_dense_saves else [],
            ranks=ranks,
            exports=exports,
        )
        hooks += saving
        if config.control is not None:
            # Without a job the barrier is local to this process.
            barrier = BarrierOp(1) if job is None else job.client.barrier
            hooks.append(_server_hook(config.control, config.model_dir, saving[0], barrier))
        if config.reporting.profile_from is not None:
            windows = ProfileWindows(config.reporting.profile_from, every_steps=config.reporting.profile_every_steps)
            hooks.append(ProfilerHook(config.model_dir, windows))
    reporting = config.reporting
    if reporting.throughput:
        hooks.append(
            ThroughputMetricHook(model_name, cluster_type=reporting.cluster_type, start_time_secs=reporting.submit_time)
        )
    return hooks


def eviction_hooks(tables: TablesConfig, ranks: RankPart | None = None) -> list[Hook]:
    """Returns hooks that remove expired rows every `evict_every_steps`, if it is set; they come before the saver."""
    if tables.evict_every_steps is None or not _removes_rows(ranks):
        return []
    return [EvictionHook(every_steps=tables.evict_every_steps)]


def report_hooks(config: TrainerConfig) -> list[Hook]:
    """Returns hooks for log lines with loss and speed, and for training metrics if enabled."""
    every_steps = config.reporting.log_every_steps
    if every_steps is None:
        return []
    hooks: list[Hook] = [StepCounterHook(every_steps)]
    if config.reporting.train_metrics:
        hooks.append(TrainMetricsHook(every_steps))
    return hooks


def save_if_due(session: HookedSession, hooks: Sequence[Hook]) -> None:
    """Runs the savers that are due, for a chief that makes no steps but waits for those of its workers."""
    with session.step_lock:
        for hook in hooks:
            if isinstance(hook, NoFirstSaveCheckpointSaverHook):
                hook.after_run(StepContext(session))


def _server_hook(
    control: ControlConfig, model_dir: str, saver_hook: NoFirstSaveCheckpointSaverHook, barrier: Barrier
) -> ServerHook:
    token = None if control.token_file is None else Path(control.token_file).read_text(encoding="utf-8").strip()
    credentials = ServerCredentials(
        token=token,
        tls_certificate=control.tls_certificate,
        tls_key=control.tls_key,
        tls_client_ca=control.tls_client_ca,
    )
    return ServerHook(model_dir, barrier, saver_hook, host=control.host, port=control.port, credentials=credentials)


def _saving_hooks(  # noqa: PLR0913 - the state of the chief; mostly keywords
    saving: SavingConfig,
    saver: Saver,
    timer: SecondOrStepTimer | None,
    dense_timer: SecondOrStepTimer | None,
    *,
    guards: Sequence[SaveGuard] = (),
    dense_guards: Sequence[SaveGuard] = (),
    ranks: RankPart | None = None,
    exports: Callable[[Saver], Sequence[SaverListener]] = _no_listeners,
) -> list[NoFirstSaveCheckpointSaverHook]:
    evicts = saving.evict_after and _removes_rows(ranks)
    attached = [*rank_listeners(saver), *exports(saver), *([EvictAfterSave()] if evicts else [])]
    full = NoFirstSaveCheckpointSaverHook(
        saver,
        timer=timer,
        listeners=attached,
        guard_saver_listeners=guards,
        ignore_save_errors=saving.ignore_errors,
    )
    if dense_timer is None:
        return [full]
    options: dict[str, Any] = {"max_to_keep": saving.max_to_keep, "dense_only": True}
    if isinstance(saver, RankSaver):
        dense_saver = saver.beside(DENSE_ONLY, **options)
    else:
        dense_saver = Saver(join(saver.model_dir, DENSE_ONLY), **options)
    dense = NoFirstSaveCheckpointSaverHook(
        dense_saver,
        timer=dense_timer,
        listeners=exports(dense_saver),
        full_saver_hook=full,
        guard_saver_listeners=dense_guards,
        ignore_save_errors=saving.ignore_errors,
    )
    return [full, dense]


def _removes_rows(ranks: RankPart | None) -> bool:
    """Returns whether this process removes expired rows: every rank its own, and rank 0 those of servers."""
    return ranks is None or ranks.shares_rows or ranks.is_first


def _of_ranks(
    timer: SecondOrStepTimerWithTideSetting | None, ranks: RankPart | None
) -> SecondOrStepTimerWithTideSetting | None:
    return timer if timer is None or ranks is None or ranks.is_alone else RankTimer(timer, ranks)


def _dense_timer(saving: SavingConfig) -> SecondOrStepTimerWithTideSetting | None:
    if saving.dense_every_steps is None and saving.dense_every_seconds is None:
        return None
    return SecondOrStepTimerWithTideSetting(saving.dense_every_seconds, saving.dense_every_steps)


def _timer(saving: SavingConfig) -> SecondOrStepTimerWithTideSetting | None:
    if saving.every_seconds is None and saving.every_steps is None:
        return None if saving.marker_files is None else on_demand_timer()
    window = saving.tide_window
    if window is None:
        return SecondOrStepTimerWithTideSetting(saving.every_seconds, saving.every_steps)
    return SecondOrStepTimerWithTideSetting(
        saving.every_seconds,
        saving.every_steps,
        tide_every_secs=saving.tide_every_seconds,
        tide_start_hour=window.start_hour,
        tide_start_minute=window.start_minute,
        tide_end_hour=window.end_hour,
        tide_end_minute=window.end_minute,
    )


class EvictAfterSave(SaverListener):
    """Drops expired rows from memory after each checkpoint, which still holds them."""

    def after_save(self, session: HookedSession, global_step_value: int) -> None:
        """Evicts, at the boundary of a step."""
        _log.info("step %d: %d expired rows were dropped", global_step_value, evict_expired(session))


class TrainMetricsHook(Hook):
    """Logs AUC or squared error of what was predicted since the last time.

    Args:
        every_steps: Steps from one line to the next.
    """

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps
        self._told = 0
        self._evaluation = Evaluation(with_error=True)

    def after_run(self, context: StepContext) -> None:
        """Adds a step, and logs when it is time."""
        self._evaluation.add(context.session.last)
        intervals = context.global_step // self._every_steps  # other workers may have made the very step
        if intervals != self._told:
            self._told = intervals
            found = ", ".join(f"{name} {value:.6g}" for name, value in sorted(self._evaluation.means().items()))
            _log.info("step %d: %s", context.global_step, found)
            self._evaluation = Evaluation(with_error=True)


class RankTimer(SecondOrStepTimerWithTideSetting):
    """A timer that is due on all ranks when that of rank 0 is. Changes that all ranks make take effect immediately.

    Args:
        timer: Its interval.
        part: The run.
    """

    def __init__(self, timer: SecondOrStepTimer, part: RankPart) -> None:
        super().__init__(every_steps=1)
        self._timer = timer
        self._wish = part.add_wish(lambda step: part.is_first and timer.should_trigger_for_step(step))

    def reset(self) -> None:
        """Clears the time at which it was last due."""
        super().reset()
        self._timer.reset()

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether the timer is due at this step, which the ranks have just made."""
        if not self.enabled or step == self.last_triggered_step():
            return False
        return self._due or self._wish.is_granted

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Notes that it was done at this step."""
        super().update_last_triggered_step(step)
        return self._timer.update_last_triggered_step(step)
