"""Display of a run in Python: a progress bar, the history, and TensorBoard if installed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from monolith.hook import Hook
from monolith.hooks.progress import ProgressHook
from monolith.hooks.summaries import RecordHook, TensorBoardRecords, has_tensorboard
from monolith.observe.progress import Progress, is_watched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.hook import HookedSession
    from monolith.hooks.summaries import RunRecordWriter
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.history import History
    from monolith.train.stop_at_step import StopAtStep

__all__ = ["progress_hooks", "record_hooks"]


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
def progress_hooks(config: TrainerConfig, stop: StopAtStep, given: Sequence[Hook]) -> Iterator[list[Hook]]:
    """Yields a progress bar for the run, if one is wanted and none was given."""
    is_wanted = is_watched() if config.reporting.progress is None else config.reporting.progress
    if not is_wanted or any(isinstance(hook, ProgressHook) for hook in given):
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
