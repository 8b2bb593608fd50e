"""Exports of a run: one with each checkpoint, by the parameters of its task, and as many as there are checkpoints."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.checkpoint import list_checkpoints
from monolith.errors import AlreadyExistsError, NotFoundError, OpError
from monolith.export import ExportConfig, ExportRecords
from monolith.files import basename, dirname, join
from monolith.hooks import SaverListener
from monolith.observe import MetricClient
from monolith.train._run_hooks import DENSE_ONLY
from monolith.train.compat.task_parameters import ExportMode

if TYPE_CHECKING:
    from monolith.checkpoint import Saver
    from monolith.hook import HookedSession
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.export.exporting import CheckpointExporter
    from monolith.train.parameters.params import Params
    from monolith.train.strategies.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportsOfRun:
    """What a run exports with its checkpoints."""

    path: str
    """Folder of all versions."""
    checkpoint_dirs: tuple[str, ...]
    """Directories of the checkpoints that exports are made and deleted with: full ones, and those without tables."""
    model_name: str
    """Of the gauge."""
    shared_embedding: bool = True
    """Exports name the rows of their checkpoint instead of writing them once more."""
    shards: int = 0
    """Servers that have the rows between them; 0: an export is in one piece."""
    is_numbered_by_step: bool = False
    """Versions are global steps, as in a synchronous run; else Unix seconds."""
    skip_zero: bool = False
    """Whether serving drops rows of zeros."""

    @classmethod
    def of(
        cls, params: Params, config: TrainerConfig, saver: Saver, *, model_name: str, strategy: Strategy
    ) -> ExportsOfRun:
        """Returns the exports of a run.

        Raises:
            ValueError: the parameters contradict each other.
        """
        checkpoints = dirname(saver.model_dir) if saver.dense_only else saver.model_dir
        return cls(
            path=join(config.model_dir or saver.model_dir, str(params.serving.export_dir_base)),
            checkpoint_dirs=(checkpoints, join(checkpoints, DENSE_ONLY)),
            model_name=model_name,
            shared_embedding=bool(params.serving.shared_embedding),
            shards=num_shards(params, config, share_rows=strategy.shares_rows),
            is_numbered_by_step=strategy.is_synchronous,
            skip_zero=config.exporting.skip_zero,
        )


def num_shards(params: Params, config: TrainerConfig, *, share_rows: bool) -> int:
    """Returns the number of shards of an export: as many as there are in training; 0: one piece."""
    mode = params.serving.export_mode
    if mode is ExportMode.STANDALONE:
        return 0
    if mode is not ExportMode.DISTRIBUTED:
        raise ValueError(
            f"task {params.name}: parameter serving.export_mode must be STANDALONE or DISTRIBUTED for an export, got"
            f" {mode!r}; set serving.export_when_saving=False to skip exports"
        )
    return max(1, config.tables.num_ps, config.num_workers if share_rows else 1)


_log = logging.getLogger(__name__)


class ExportSaverListener(SaverListener):
    """Exports each checkpoint of a saver. Failures are logged, and training continues."""

    def __init__(self, saver: Saver, exporter: CheckpointExporter, exports: ExportsOfRun) -> None:
        self._saver = saver
        self._exporter = exporter
        self._exports = exports
        self._records = ExportRecords(exports.path)

    def after_save(self, session: HookedSession, global_step_value: int) -> None:  # noqa: ARG002 - as called
        """Exports, and removes the exports whose checkpoint has gone."""
        try:
            self._export(global_step_value)
        except OpError as error:
            _log.error("export at step %d: %s", global_step_value, error)
        except Exception:  # noqa: BLE001 - whatever the code of a task raises
            _log.exception("export at step %d failed", global_step_value)

    def _export(self, step: int) -> None:
        saved = self._saver.last_saved
        if saved is None:
            return
        if self._saver.dense_only and not self._records.has_rows():
            _log.info("export at step %d: weights alone are exported once there is an export with rows", step)
            return
        version = self._written(saved.path, step)
        self._records.add(version, step)
        self._records.retain(self._steps())
        MetricClient().emit_store("export_models.latest_version", version, {"model_name": self._exports.model_name})

    def _written(self, checkpoint: str, step: int) -> int:
        exports = self._exports
        options = ExportConfig(
            version=step if exports.is_numbered_by_step else None, shards=exports.shards, skip_zero=exports.skip_zero
        )
        try:
            place = self._exporter.export(checkpoint, exports.path, shared=exports.shared_embedding, options=options)
        except AlreadyExistsError:
            _log.info("export at step %d: it was exported before", step)
            return step
        return int(basename(place))

    def _steps(self) -> set[int]:
        steps: set[int] = set()
        for folder in self._exports.checkpoint_dirs:
            try:
                steps |= {checkpoint.step for checkpoint in list_checkpoints(folder)}
            except NotFoundError:  # no checkpoint of this kind yet
                continue
        return steps
