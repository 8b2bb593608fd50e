"""Exports with each checkpoint, and keeps as many exports as there are checkpoints."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.checkpoint.inspection import list_checkpoints
from monolith.errors import AlreadyExistsError, NotFoundError, OpError
from monolith.export.export_records import ExportRecords
from monolith.export.writer import ExportConfig
from monolith.files import basename
from monolith.hooks.saver_listener import SaverListener
from monolith.observe import MetricClient

if TYPE_CHECKING:
    from monolith.checkpoint import Saver
    from monolith.hook import HookedSession
    from monolith.train.export.checkpoint_exporting import CheckpointExporter
    from monolith.train.export.exports_of_run import ExportsOfRun

__all__ = ["ExportSaverListener"]

_log = logging.getLogger(__name__)


class ExportSaverListener(SaverListener):
    """Exports each checkpoint of a saver. Failures are logged, and training continues.

    Args:
        saver: Saver of the checkpoints.
        exporter: Makes a model of them.
        wanted: Options and target of the export.
    """

    def __init__(self, saver: Saver, exporter: CheckpointExporter, wanted: ExportsOfRun) -> None:
        self._saver = saver
        self._exporter = exporter
        self._wanted = wanted
        self._records = ExportRecords(wanted.path)

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
        MetricClient().emit_store("export_models.latest_version", version, {"model_name": self._wanted.model_name})

    def _written(self, checkpoint: str, step: int) -> int:
        wanted = self._wanted
        options = ExportConfig(
            version=step if wanted.is_numbered_by_step else None, shards=wanted.shards, skip_zero=wanted.skip_zero
        )
        try:
            place = self._exporter.export(checkpoint, wanted.path, shared=wanted.shared_embedding, options=options)
        except AlreadyExistsError:
            _log.info("export at step %d: it was exported before", step)
            return step
        return int(basename(place))

    def _steps(self) -> set[int]:
        found: set[int] = set()
        for folder in self._wanted.checkpoint_dirs:
            try:
                found |= {each.step for each in list_checkpoints(folder)}
            except NotFoundError:  # no checkpoint of this kind yet
                continue
        return found
