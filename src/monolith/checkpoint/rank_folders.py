"""Checkpoints whose parts are in a directory for each rank, ``index-<rank>``, of a synchronous run.

Each part has the dense weights, which are equal on all ranks, and the rows of its rank. The checkpoint is complete
where all parts are visible: any number of ranks, parameter servers and one process restore it by the path of one part.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, NamedTuple

from monolith.checkpoint.catalog import Catalog, read_manifest
from monolith.checkpoint.folder import open_folder
from monolith.checkpoint.state_files import split_path
from monolith.errors import FileUnavailableError, OpError
from monolith.files import join

if TYPE_CHECKING:
    from monolith.checkpoint.folder import Folder
    from monolith.checkpoint.manifest import Manifest

__all__ = ["CheckpointId", "folder_of_rank", "id_of", "newest_of_ranks", "parts_of_others"]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"index-\d{4,}")


class CheckpointId(NamedTuple):
    """Values that all parts of one checkpoint share, and no other checkpoint has."""

    generation: int
    step: int
    created: float


def id_of(manifest: Manifest) -> CheckpointId:
    """Returns the id of the checkpoint that a manifest is a part of."""
    return CheckpointId(manifest.generation, manifest.step, manifest.created)


def folder_of_rank(model_dir: str, rank: int) -> str:
    """Returns the directory of a rank, with the name that ByteDance Monolith uses.

    >>> folder_of_rank("models/clicks", 3)
    'models/clicks/index-0003'
    """
    return join(model_dir, f"index-{rank:04d}")


def parts_of_others(path: str, manifest: Manifest) -> list[str]:
    """Returns full prefixes of the visible parts of other ranks; none for a checkpoint without parts."""
    folder, prefix = split_path(path)
    parent, own = split_path(folder)
    if _NAME.fullmatch(own) is None:
        return []
    others = [name for name in open_folder(parent).names() if _NAME.fullmatch(name) and name != own]
    paths = [f"{parent}/{name}/{prefix}" for name in others]
    return [other for other in paths if _has_part(other, id_of(manifest))]


def newest_of_ranks(model_dir: Folder, basename: str, paths: list[str]) -> list[str]:
    """Returns the checkpoints to try, the best first: those of ranks after or before those of the model directory.

    Args:
        model_dir: The directory.
        basename: First part of prefixes.
        paths: Checkpoints of the model directory.
    """
    first = folder_of_rank(model_dir.path, 0)
    try:
        if not model_dir.exists(split_path(first)[1]):
            return paths
        of_ranks = Catalog(open_folder(first), basename).newest_first()
    except FileUnavailableError as error:
        if not paths:
            raise
        _log.warning("restore: the directories of ranks are passed over: %s", error)
        return paths
    newer, older = (of_ranks, paths) if _created(of_ranks) > _created(paths) else (paths, of_ranks)
    return [*newer, *older]


def _created(paths: list[str]) -> float:
    """Returns the creation time of the first one that can be read."""
    for path in paths:
        try:
            return read_manifest(path).created
        except OpError:  # the catalog has logged it
            continue
    return 0.0


def _has_part(path: str, wanted: CheckpointId) -> bool:
    try:
        return id_of(read_manifest(path)) == wanted
    except OpError:
        return False
