"""What a person sees of a run from Python: a bar, the history, and TensorBoard where it is installed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from monolith.hooks.progress import ProgressHook
from monolith.hooks.summaries import RecordHook, TensorBoardRecords, has_tensorboard
from monolith.observe.progress import Progress, is_watched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.hook import Hook
    from monolith.hooks.summaries import RecordWriter
    from monolith.train.history import History
    from monolith.train.stop_at_step import StopAtStep
    from monolith.train.trainer_config import TrainerConfig

__all__ = ["progress_hooks", "record_hooks"]


def record_hooks(config: TrainerConfig, history: History) -> list[Hook]:
    """Records for the history, and of the chief for TensorBoard."""
    every_steps = config.reporting.summary_every_steps
    if every_steps is None:
        return []
    writers: list[RecordWriter] = [history]
    is_wanted = has_tensorboard() if config.reporting.tensorboard is None else config.reporting.tensorboard
    if is_wanted and config.model_dir is not None and config.worker_index == 0:
        writers.append(TensorBoardRecords(config.model_dir))
    return [RecordHook(*writers, every_steps=every_steps)]


@contextmanager
def progress_hooks(config: TrainerConfig, stop: StopAtStep, given: Sequence[Hook]) -> Iterator[list[Hook]]:
    """A bar for the run, where one is wanted and nobody has given one."""
    is_wanted = is_watched() if config.reporting.progress is None else config.reporting.progress
    if not is_wanted or any(isinstance(hook, ProgressHook) for hook in given):
        yield []
        return
    with Progress(total=stop.max_steps) as bar:
        yield [ProgressHook(bar, steps=stop.steps)]
