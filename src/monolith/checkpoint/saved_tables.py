"""The tables of committed checkpoints, for owners of rows that restore themselves."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.checkpoint.catalog import Catalog, read_manifest
from monolith.checkpoint.folder import open_folder
from monolith.checkpoint.manifest import SUFFIX
from monolith.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.checkpoint.folder import FolderPath

__all__ = ["SavedTables", "committed_names", "saved_tables"]

logger = logging.getLogger(__name__)

_BASENAME = "model.ckpt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTables:
    """The snapshots of one checkpoint."""

    path: str
    step: int
    folders: Mapping[int, str]
    """Id of the snapshot of a store -> its folder."""


def committed_names(model_dir: FolderPath) -> frozenset[str]:
    """Returns names that change when a checkpoint is committed or removed: a cheap check for changes.

    Raises:
        OpError: the directory cannot be read.
    """
    return frozenset(name for name in open_folder(model_dir).names() if name.endswith(SUFFIX))


def saved_tables(model_dir: FolderPath) -> list[SavedTables]:
    """Returns the checkpoints with tables of a model directory, the newest first; skips those that cannot be read."""
    folder = open_folder(model_dir)
    catalog = Catalog(folder, _BASENAME)
    found = []
    for path in catalog.newest_first():
        try:
            manifest = read_manifest(path)
        except OpError as error:
            logger.warning("checkpoint '%s': %s", path, error)
            continue
        if manifest.kind == "full":
            folders = {tables.snapshot_id: folder.place(tables.folder) for tables in manifest.tables.values()}
            found.append(SavedTables(path=path, step=manifest.step, folders=folders))
    return found
