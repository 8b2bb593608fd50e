"""Records of a run in Weights & Biases and in MLflow, which are imported when a run begins."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from monolith.hooks.summaries import EVERY_STEPS, RecordHook

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MlflowHook", "WandbHook"]


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
