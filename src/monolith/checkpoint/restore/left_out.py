"""Applies `RestoreConfig.leave_out` once to a model directory.

A run repeats its command when it resumes. Weights that were not restored at first are in its own checkpoints later, and
must not be reset to their initial values again.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING

from monolith.checkpoint.catalog import step_of

if TYPE_CHECKING:
    from monolith.checkpoint.folder import Folder
    from monolith.checkpoint.restore.options import RestoreConfig

__all__ = ["is_left_out_already", "record_left_out", "without_leave_out"]

logger = logging.getLogger(__name__)

MARKER = "leave_out"
"""File of the model directory: the patterns, and the step of the checkpoint that they were applied to."""


def is_left_out_already(folder: Folder, path: str, options: RestoreConfig) -> bool:
    """Returns whether the checkpoint at `path` was written after the same `leave_out` was applied to an earlier one."""
    if not options.leave_out or not folder.exists(MARKER):
        return False
    applied = json.loads(folder.read(MARKER))
    return list(options.leave_out) == applied["leave_out"] and step_of(path) > int(applied["step"])


def record_left_out(folder: Folder, path: str, options: RestoreConfig) -> None:
    """Records that `leave_out` was applied to the checkpoint at `path`."""
    if options.leave_out:
        document = {"leave_out": list(options.leave_out), "step": step_of(path)}
        folder.replace(MARKER, json.dumps(document).encode())


def without_leave_out(path: str, options: RestoreConfig) -> RestoreConfig:
    """Returns the options for a checkpoint that has the weights already, and logs a warning."""
    logger.warning(
        "restore: leave_out=%s was applied to an earlier checkpoint of this directory; '%s' is restored in full. To"
        " apply it again, remove the file '%s' from the directory",
        list(options.leave_out),
        path,
        MARKER,
    )
    return dataclasses.replace(options, leave_out=())
