"""Hooks that a trainer attaches to its session: reports, progress, saves, stops, publishing, and those of a job."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.clock import SystemClock
from monolith.cluster import BarrierOp
from monolith.deltalog import DeltaLog
from monolith.files import join
from monolith.hook import Hook, StepContext, stop_together
from monolith.hooks import (
    BarrierHook,
    BarrierSaverListener,
    CustomGlobalStepWaiterHook,
    DeltaPublishHook,
    Evaluation,
    EvictionHook,
    NanTensorHook,
    NoFirstSaveCheckpointSaverHook,
    ProfilerHook,
    ProfileWindows,
    ProgressHook,
    RecordHook,
    ReqTimeControlDumpHook,
    SaverListener,
    SecondOrStepTimerWithTideSetting,
    StepCounterHook,
    SyncTrainingForceDumpHook,
    SyncTrainingSaverControlHook,
    TensorBoardRecords,
    ThroughputMetricHook,
    TrainingHooksHelper,
    evict_expired,
    has_tensorboard,
    slow_start_step,
)
from monolith.hooks.server import ServerCredentials, ServerHook
from monolith.observe import Progress, is_watched
from monolith.train._rank_run import rank_listeners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from monolith.checkpoint import Saver
    from monolith.clock import Clock
    from monolith.cluster import Barrier
    from monolith.hook import HookedSession
    from monolith.hooks import RunRecordWriter, SaveGuard, SecondOrStepTimer, SwitchedTimer
    from monolith.train.config.trainer_config import ControlConfig, SavingConfig, TablesConfig, TrainerConfig
    from monolith.train.history import History
    from monolith.train.job_part import JobPart
    from monolith.train.rank_part import RankPart


class StopAtStep(Hook):
    """Stops a session after some steps.

    Args:
        steps: Number of steps after the start of the first session; None: no such limit.
        max_steps: Global step to stop at; None: no such limit.
    """

    def __init__(self, *, steps: int | None = None, max_steps: int | None = None) -> None:
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value < 0:
                raise ValueError(f"{name} must be >= 0 or None, got {value}")
        self.steps = steps
        self.max_steps = max_steps
        self._last_step: int | None = None

    def after_create_session(self, session: HookedSession) -> None:
        """Finds the last step, once: a session that is rebuilt has the same one."""
        if self._last_step is None:
            limits = [] if self.steps is None else [session.global_step + self.steps]
            limits += [] if self.max_steps is None else [self.max_steps]
            self._last_step = min(limits, default=None)
        self._stop_if_reached(session)

    def after_run(self, context: StepContext) -> None:
        """Stops at the last step."""
        self._stop_if_reached(context.session)

    def _stop_if_reached(self, session: HookedSession) -> None:
        if self._last_step is not None and session.global_step >= self._last_step:
            stop_together(session)  # every rank of a synchronous run has the same step


def record_hooks(config: TrainerConfig, history: History) -> list[Hook]:
    """Records for the history, and of the chief for TensorBoard; the chief and all ranks count expired rows."""
    every_steps = config.reporting.summary_every_steps
    counts = [_ExpiredRows(history)] if config.worker_index == 0 or config.sync is not None else []
    if every_steps is None:
        return [*counts]
    writers: list[RunRecordWriter] = [history]
    is_wanted = has_tensorboard() if config.reporting.tensorboard is None else config.reporting.tensorboard
    if is_wanted and config.model_dir is not None and config.worker_index == 0:
        writers.append(TensorBoardRecords(config.model_dir))
    return [RecordHook(*writers, every_steps=every_steps), *counts]


@contextmanager
def progress_hooks(config: TrainerConfig, stop: StopAtStep, attached: Sequence[Hook]) -> Iterator[list[Hook]]:
    """Yields a progress bar for the run, if one is wanted and none was given."""
    is_wanted = is_watched() if config.reporting.progress is None else config.reporting.progress
    if not is_wanted or any(isinstance(hook, ProgressHook) for hook in attached):
        yield []
        return
    with Progress(total=stop.max_steps) as bar:
        yield [ProgressHook(bar, steps=stop.steps)]


class _ExpiredRows(Hook):
    """Counts the rows that a run removed because they had expired."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._before: int | None = None

    def after_create_session(self, session: HookedSession) -> None:
        """Records the initial count: tables of an earlier run may have removed rows already."""
        if self._before is None:
            self._before = _num_evicted(session)

    def end(self, session: HookedSession) -> None:
        """Reads the count while servers are still up."""
        self._history.expired_rows = max(0, _num_evicted(session) - (self._before or 0))


def _num_evicted(session: HookedSession) -> int:
    return sum(store.stats().evicted for store in session.state.stores.values())


DELTA_LOG = "delta_log"
"""The folder of the log in the model directory."""


def require_publishing(config: TrainerConfig, caller: str) -> None:
    """Refuses a run that pushes without publishing, as pushes are read from its log.

    Raises:
        ValueError: the run does not publish.
    """
    if config.publishing is None:
        raise ValueError(
            f"{caller}: a sync_backend pushes what the run publishes, and it publishes nothing; turn publishing on"
        )


def publishing_hooks(config: TrainerConfig, ranks: RankPart | None) -> list[Hook]:
    """Returns the hooks of the chief, which makes servers publish their rows, or of a rank that has rows itself."""
    publishing = config.publishing
    is_first = config.worker_index == 0 if ranks is None else ranks.is_first
    if publishing is None or not (is_first or (ranks is not None and ranks.shares_rows)):
        return []
    place = publishing.log if publishing.log is not None else join(config.model_dir or "", DELTA_LOG)
    log = DeltaLog(place, base_folder=publishing.base_folder)
    return [
        DeltaPublishHook(
            log, publish_dense=is_first, interval=publishing.interval, dense_interval=publishing.dense_interval
        )
    ]


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


def chief_job_hooks(part: JobPart) -> list[Hook]:
    """Returns the hooks before the savers: health of the servers, and that the model is restored."""
    hooks: list[Hook] = []
    if part.health_hook is not None:
        hooks.append(part.health_hook)
    return [*hooks, *_in_step(part).training_chief_hooks]


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
        guards: list[SaveGuard] = []
        if job is not None:
            patience = job.settings.max_pending_seconds_for_barrier
            guards.append(BarrierSaverListener(job.client.barrier, max_pending_seconds=patience))
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
    dense_saver = saver.subfolder(DENSE_ONLY, **options)
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
        self._num_logged = 0
        self._evaluation = Evaluation(with_error=True)

    def after_run(self, context: StepContext) -> None:
        """Adds a step, and logs when it is time."""
        self._evaluation.add(context.session.last)
        intervals = context.global_step // self._every_steps  # other workers may have made the very step
        if intervals != self._num_logged:
            self._num_logged = intervals
            metrics = ", ".join(f"{name} {value:.6g}" for name, value in sorted(self._evaluation.means().items()))
            _log.info("step %d: %s", context.global_step, metrics)
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
