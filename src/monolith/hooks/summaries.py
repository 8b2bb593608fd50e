"""Periodic records of a run, for a history, TensorBoard or an experiment tracker."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
from typing import TYPE_CHECKING, Any, Protocol

from monolith.errors import OpError
from monolith.hook import Hook
from monolith.hooks.run_meter import RunMeter
from monolith.observe.summaries import SummaryWriter, scalars

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext


_log = logging.getLogger(__name__)

EVERY_STEPS = 100


class RunRecordWriter(Protocol):
    """Receives the records of a run. Used by the training thread."""

    def open(self) -> None:
        """Called when a session begins, and again when it was rebuilt."""

    def write(self, step: int, record: Mapping[str, float]) -> None:
        """Writes the measurements up to a step: name -> number."""

    def close(self) -> None:
        """Called when the session ends, also after an error."""


class RecordHook(Hook):
    """Measures a run and passes records to writers: every `every_steps` steps, and at the end for the remaining steps.

    Args:
        *writers: Receive the records.
        every_steps: Steps from one record to the next.
        clock: Measures speed.
    """

    def __init__(self, *writers: RunRecordWriter, every_steps: int = EVERY_STEPS, clock: Clock | None = None) -> None:
        if every_steps < 1:
            raise ValueError(f"{type(self).__name__}: every_steps must be at least 1, got {every_steps}")
        self._writers = writers
        self._every_steps = every_steps
        self._meter = RunMeter(clock=clock)
        self._recorded = 0

    def after_create_session(self, session: HookedSession) -> None:
        """Starts the measurement."""
        self._recorded = session.global_step
        self._meter.begin()
        for writer in self._writers:
            session.on_close(writer.close)
            writer.open()

    def after_run(self, context: StepContext) -> None:
        """Measures a step, and writes a record when it is due."""
        self._meter.add(context.session.last)
        if context.global_step >= self._recorded + self._every_steps:
            self._record(context.session)

    def end(self, session: HookedSession) -> None:
        """Writes a record of the remaining steps."""
        if session.global_step > self._recorded:
            self._record(session)

    def _record(self, session: HookedSession) -> None:
        self._recorded = session.global_step
        record = self._meter.record(session)
        for writer in self._writers:
            writer.write(self._recorded, record)


class TensorBoardRecords:
    """Writes records as scalars of an event file, which is created with the first record.

    An error of the file system stops the summaries with a warning, not the run.

    Args:
        log_dir: Folder of the run, such as its model directory; any fsspec path.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._log_dir = log_dir
        self._writer: SummaryWriter | None = None
        self._is_broken = False

    def open(self) -> None:
        """Does nothing: a run without a record leaves no file."""

    def write(self, step: int, record: Mapping[str, float]) -> None:
        """Writes one scalar for each number."""
        if self._is_broken:
            return
        try:
            if self._writer is None:
                self._writer = SummaryWriter(self._log_dir)
            self._writer.add_summary(scalars(record), global_step=step)
            self._writer.flush()  # records are rare, and a viewer may be open
        except OpError as error:
            self._give_up(error)

    def close(self) -> None:
        """Closes the file."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except OpError as error:
            self._give_up(error)

    def _give_up(self, error: OpError) -> None:
        writer, self._writer, self._is_broken = self._writer, None, True
        if writer is not None:
            with contextlib.suppress(OpError):
                writer.close()
        _log.warning("summaries: no more are written to '%s': %s", self._log_dir, error)


class TensorBoardHook(RecordHook):
    """Loss, metrics, learning rates, speed and table sizes in TensorBoard; a `Trainer` attaches it automatically.

    Args:
        log_dir: Folder of the run; any fsspec path.
        every_steps: Steps from one record to the next.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, every_steps: int = EVERY_STEPS) -> None:
        super().__init__(TensorBoardRecords(log_dir), every_steps=every_steps)


def has_tensorboard() -> bool:
    """Returns whether TensorBoard is installed."""
    return importlib.util.find_spec("tensorboard") is not None


class WandbHook(RecordHook):
    """Logs loss, metrics, learning rates, speed and table sizes to a run of Weights & Biases.

    It logs to the active run, which stays open, or creates one with the options and finishes it when the session ends.
    Needs ``monolith-torch[wandb]``.

    Args:
        every_steps: Steps from one record to the next.
        **options: Options of ``wandb.init``, such as ``project``, ``name`` and ``config``.
    """

    def __init__(self, *, every_steps: int = EVERY_STEPS, **options: Any) -> None:
        super().__init__(_WandbRecords(options), every_steps=every_steps)


class MlflowHook(RecordHook):
    """Logs the same values to a run of MLflow, with unchanged slashes in names and a step for each record.

    It logs to the active run, which stays open, or starts one with the options and ends it when the session ends. Needs
    ``monolith-torch[mlflow]``.

    Args:
        every_steps: Steps from one record to the next.
        **options: Options of ``mlflow.start_run``, such as ``run_name`` and ``experiment_id``.
    """

    def __init__(self, *, every_steps: int = EVERY_STEPS, **options: Any) -> None:
        super().__init__(_MlflowRecords(options), every_steps=every_steps)


class _WandbRecords:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._run: Any = None
        self._is_own = False

    def open(self) -> None:
        wandb = _imported("wandb", "WandbHook")
        self._is_own = wandb.run is None
        self._run = wandb.init(**self._options) if self._is_own else wandb.run

    def write(self, step: int, record: Mapping[str, float]) -> None:
        self._run.log(dict(record), step=step)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None and self._is_own:
            run.finish()


class _MlflowRecords:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._mlflow: Any = None
        self._is_own = False

    def open(self) -> None:
        self._mlflow = _imported("mlflow", "MlflowHook")
        self._is_own = self._mlflow.active_run() is None
        if self._is_own:
            self._mlflow.start_run(**self._options)

    def write(self, step: int, record: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(record), step=step)

    def close(self) -> None:
        mlflow, self._mlflow = self._mlflow, None
        if mlflow is not None and self._is_own:
            mlflow.end_run()


def _imported(package: str, hook: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        message = f"{hook} needs {package}, which is not installed; run: pip install 'monolith-torch[{package}]'"
        raise ModuleNotFoundError(message, name=error.name) from error
