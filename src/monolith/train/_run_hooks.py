"""Hooks that a trainer attaches to its session: reports, progress, saves, stops, and publishing."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from monolith.clock import SystemClock
from monolith.deltalog import DeltaLog
from monolith.files import join
from monolith.hook import Hook, StepContext, stop_together
from monolith.hooks import (
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
    evict_expired,
    has_tensorboard,
)
from monolith.hooks.server import ServerCredentials, ServerHook
from monolith.observe import Progress, is_watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from monolith.checkpoint import Saver
    from monolith.clock import Clock
    from monolith.cluster import Barrier
    from monolith.hook import HookedSession
    from monolith.hooks import RunRecordWriter, SwitchedTimer
    from monolith.train.config.trainer_config import ControlConfig, SavingConfig, TablesConfig, TrainerConfig
    from monolith.train.history import History
    from monolith.train.strategies.strategy import Strategy


_Timer: TypeAlias = SecondOrStepTimerWithTideSetting


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


def record_hooks(config: TrainerConfig, history: History, strategy: Strategy) -> list[Hook]:
    """Records for the history, and of the chief for TensorBoard; the chief and all ranks count expired rows."""
    every_steps = config.reporting.summary_every_steps
    counts = [_ExpiredRows(history)] if strategy.is_chief else []
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
    """Refuses a run that pushes without publishing, as pushes are read from its log."""
    if config.publishing is None:
        raise ValueError(
            f"{caller}: a sync_backend pushes what the run publishes, and it publishes nothing; turn publishing on"
        )


def publishing_hooks(config: TrainerConfig, strategy: Strategy) -> list[Hook]:
    """Returns the hooks of the chief, which makes servers publish their rows, or of a rank that has rows itself."""
    publishing = config.publishing
    if publishing is None or not (strategy.is_first or strategy.shares_rows):
        return []
    place = publishing.log if publishing.log is not None else join(config.model_dir or "", DELTA_LOG)
    log = DeltaLog(place, base_folder=publishing.base_folder)
    return [
        DeltaPublishHook(
            log, publish_dense=strategy.is_first, interval=publishing.interval, dense_interval=publishing.dense_interval
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


_log = logging.getLogger(__name__)

DENSE_ONLY = "dense_only"
"""The folder of checkpoints without tables, in the model directory."""


def _no_listeners(_: Saver) -> Sequence[SaverListener]:
    return ()


def chief_hooks(
    config: TrainerConfig,
    saver: Saver | None,
    strategy: Strategy,
    *,
    model_name: str,
    clock: Clock | None = None,
    exports: Callable[[Saver], Sequence[SaverListener]] = _no_listeners,
) -> list[Hook]:
    """Files that ask for saves, saver, dense-only saver, controller and profiler, then metrics."""
    hooks: list[Hook] = []
    if saver is not None and config.model_dir is not None:
        # Before the saver, so that a model whose loss is no number any more is not saved.
        hooks.append(NanTensorHook())
        timers = _shared(_timer(config.saving), strategy), _shared(_dense_timer(config.saving), strategy)
        hooks += marker_hooks(config, *timers, clock=clock or SystemClock())
        saving = _saving_hooks(config, saver, strategy, timers=timers, exports=exports)
        hooks += saving
        if config.control is not None:
            hooks.append(_server_hook(config.control, config.model_dir, saving[0], strategy.barrier))
        if config.reporting.profile_from is not None:
            windows = ProfileWindows(config.reporting.profile_from, every_steps=config.reporting.profile_every_steps)
            hooks.append(ProfilerHook(config.model_dir, windows))
    reporting = config.reporting
    if reporting.throughput:
        hooks.append(
            ThroughputMetricHook(model_name, cluster_type=reporting.cluster_type, start_time_secs=reporting.submit_time)
        )
    return hooks


def eviction_hooks(tables: TablesConfig, strategy: Strategy) -> list[Hook]:
    """Returns hooks that remove expired rows every `evict_every_steps`, if it is set; they come before the saver."""
    if tables.evict_every_steps is None or not strategy.removes_rows:
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


def _saving_hooks(
    config: TrainerConfig,
    saver: Saver,
    strategy: Strategy,
    *,
    timers: tuple[_Timer | None, _Timer | None],
    exports: Callable[[Saver], Sequence[SaverListener]],
) -> list[NoFirstSaveCheckpointSaverHook]:
    saving, guards = config.saving, strategy.save_guards()
    timer, dense_timer = timers
    evicts = saving.evict_after and strategy.removes_rows
    attached = [*strategy.saver_listeners(saver), *exports(saver), *([EvictAfterSave()] if evicts else [])]
    full = NoFirstSaveCheckpointSaverHook(
        saver, timer=timer, listeners=attached, guard_saver_listeners=guards, ignore_save_errors=saving.ignore_errors
    )
    if dense_timer is None:
        return [full]
    dense_saver = saver.subfolder(DENSE_ONLY, max_to_keep=saving.max_to_keep, dense_only=True)
    dense = NoFirstSaveCheckpointSaverHook(
        dense_saver,
        timer=dense_timer,
        listeners=exports(dense_saver),
        full_saver_hook=full,
        guard_saver_listeners=guards if config.job.barrier_at_dense_saves else [],
        ignore_save_errors=saving.ignore_errors,
    )
    return [full, dense]


def _shared(timer: _Timer | None, strategy: Strategy) -> _Timer | None:
    return None if timer is None else strategy.shared_timer(timer)


def _dense_timer(saving: SavingConfig) -> _Timer | None:
    if saving.dense_every_steps is None and saving.dense_every_seconds is None:
        return None
    return SecondOrStepTimerWithTideSetting(saving.dense_every_seconds, saving.dense_every_steps)


def _timer(saving: SavingConfig) -> _Timer | None:
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
    """Logs AUC or squared error of what was predicted since the last time."""

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
