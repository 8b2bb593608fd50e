"""Exports with each checkpoint, and keeps as many exports as there are checkpoints."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING

import fsspec

from monolith.checkpoint.inspection import list_checkpoints
from monolith.errors import NotFoundError, OpError
from monolith.export.export_folder import ExportFolder
from monolith.export.writer import ExportOptions
from monolith.files import basename, join, named_errors
from monolith.hooks.saver_listener import SaverListener
from monolith.observe import MetricClient
from monolith.train.exporting import export_session
from monolith.train.session import Session

if TYPE_CHECKING:
    from monolith.hook import HookedSession

__all__ = ["ExportSaverListener"]

_log = logging.getLogger(__name__)

STATE = "ExportSaverListenerState"
_ENTRY = re.compile(r'entries\s*\{\s*export_dir:\s*("(?:[^"\\]|\\.)*")\s*global_step:\s*(\d+)\s*\}')


class ExportSaverListener(SaverListener):
    """Exports after each checkpoint of a run in one process. What goes wrong is logged, and training goes on.

    Args:
        model_dir: Of the run.
        path: Folder of the exports.
        shared_embedding: Exports name the rows of their checkpoint instead of writing them once more.
        model_name: Of the gauge.
    """

    def __init__(self, model_dir: str, path: str, *, shared_embedding: bool, model_name: str) -> None:
        self._model_dir = model_dir
        self._path = path
        self._shared = shared_embedding
        self._tags = {"model_name": model_name}

    def after_save(self, session: HookedSession, global_step_value: int) -> None:
        """Exports, and removes the exports whose checkpoint has gone."""
        if not isinstance(session, Session):
            return
        try:
            self._export(session, global_step_value)
        except OpError as error:
            _log.error("export at step %d: %s", global_step_value, error)

    def _export(self, session: Session, step: int) -> None:
        steps = {each.step: each.path for each in list_checkpoints(self._model_dir)}
        checkpoint = steps.get(step) if self._shared else None
        place = export_session(session, self._path, options=ExportOptions(checkpoint=checkpoint))
        listed = [entry for entry in self._entries() if entry[0] != place] + [(place, step)]
        self._write([entry for entry in listed if entry[1] in steps])
        for folder, of_step in listed:
            if of_step not in steps:
                ExportFolder(folder).remove()
        MetricClient().emit_store("export_models.latest_version", int(basename(place)), self._tags)

    def _entries(self) -> list[tuple[str, int]]:
        """Folder and step of each export, as the file says."""
        place = join(self._path, STATE)
        try:
            with named_errors(place, "read"):
                files, path = fsspec.core.url_to_fs(place)
                text = files.cat_file(path).decode()
        except NotFoundError:
            return []
        return [(str(json.loads(found[1])), int(found[2])) for found in _ENTRY.finditer(text)]

    def _write(self, entries: list[tuple[str, int]]) -> None:
        text = "".join(
            f"entries {{\n  export_dir: {json.dumps(folder)}\n  global_step: {step}\n}}\n" for folder, step in entries
        )
        place = join(self._path, STATE)
        with named_errors(place, "written"):
            files, path = fsspec.core.url_to_fs(place)
            files.pipe_file(f"{path}.tmp", text.encode())
            files.mv(f"{path}.tmp", path)
