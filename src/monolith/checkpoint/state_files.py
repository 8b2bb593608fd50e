"""The text files `checkpoint` and `monolith_checkpoint` of a model directory, as in TensorFlow and ByteDance Monolith.

Paths inside the directory are written relative to it, so that a directory can be moved; readers get full paths.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from google.protobuf import text_format

from monolith.checkpoint.manifest import SUFFIX
from monolith.checkpoint.protos.checkpoint_state_pb2 import CheckpointState, MonolithCheckpointState
from monolith.errors import NotFoundError, OpError
from monolith.files import StoragePath, isabs, local_path, open_storage

if TYPE_CHECKING:
    from monolith.files import Storage

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint"
MONOLITH_CHECKPOINT = "monolith_checkpoint"


def full_path(folder: str, path: str) -> str:
    """Returns a path of a state file as its reader needs it."""
    return path if isabs(path) else f"{folder.rstrip('/')}/{path}"


def relative_path(folder: str, path: str) -> str:
    """Returns a path as it is written: without the folder, if it is directly in it."""
    parent, slash, name = path.rpartition("/")
    return name if slash and parent == folder.rstrip("/") else path


def split_path(path: str) -> tuple[str, str]:
    """Returns folder and prefix of a full path."""
    folder, _, prefix = path.rpartition("/")
    return folder or "/", prefix


def checkpoint_exists(path: str) -> bool:
    """Returns whether the checkpoint of this full path exists: whether its manifest does."""
    folder, prefix = split_path(path)
    return open_storage(folder).exists(f"{prefix}{SUFFIX}")


def read_checkpoint_state(folder: Storage, filename: str = CHECKPOINT) -> CheckpointState | None:
    """Reads the state file, with full paths; None if it is missing or, with a warning, if it cannot be read."""
    try:
        state = text_format.Parse(folder.read(filename), CheckpointState())
    except NotFoundError:
        return None
    except (OpError, text_format.ParseError, UnicodeDecodeError) as error:
        logger.warning("%s: %s: %s", folder.place(filename), type(error).__name__, error)
        return None
    if not state.model_checkpoint_path:
        logger.warning("%s: no model_checkpoint_path in it", folder.place(filename))
        return None
    root = _root(folder)
    state.model_checkpoint_path = full_path(root, state.model_checkpoint_path)
    paths = [full_path(root, path) for path in state.all_model_checkpoint_paths]
    if state.model_checkpoint_path not in paths:
        paths.append(state.model_checkpoint_path)
    state.all_model_checkpoint_paths[:] = paths
    return state


def write_checkpoint_state(folder: Storage, state: CheckpointState, filename: str = CHECKPOINT) -> None:
    """Replaces the state file atomically, with paths of this folder relative to it."""
    root = _root(folder)
    written = CheckpointState()
    written.CopyFrom(state)
    written.model_checkpoint_path = relative_path(root, state.model_checkpoint_path)
    written.all_model_checkpoint_paths[:] = [relative_path(root, path) for path in state.all_model_checkpoint_paths]
    folder.replace(filename, text_format.MessageToString(written).encode())


def get_monolith_checkpoint_state(
    checkpoint_dir: StoragePath, filename: str | None = None, remove_invalid_path: bool = False
) -> MonolithCheckpointState | None:
    """Reads `monolith_checkpoint`; returns None, with a warning, if it is missing or cannot be read.

    Args:
        checkpoint_dir: The model directory.
        filename: Name of the file, `monolith_checkpoint` by default.
        remove_invalid_path: Return full paths, without those of checkpoints that no longer exist.
    """
    folder = open_storage(checkpoint_dir)
    name = MONOLITH_CHECKPOINT if filename is None else filename
    try:
        state = text_format.Parse(folder.read(name), MonolithCheckpointState())
    except (OpError, text_format.ParseError, UnicodeDecodeError) as error:
        logger.warning("%s: %s: %s", folder.place(name), type(error).__name__, error)
        return None
    if remove_invalid_path:
        paths = [full_path(_root(folder), path) for path in state.exempt_model_checkpoint_paths]
        state.exempt_model_checkpoint_paths[:] = [path for path in paths if checkpoint_exists(path)]
    return state


def write_monolith_checkpoint_state(
    folder: Storage, state: MonolithCheckpointState, filename: str = MONOLITH_CHECKPOINT
) -> None:
    """Replaces the file atomically, with paths of this folder relative to it."""
    root = _root(folder)
    written = MonolithCheckpointState()
    written.CopyFrom(state)
    written.exempt_model_checkpoint_paths[:] = [relative_path(root, p) for p in state.exempt_model_checkpoint_paths]
    folder.replace(filename, text_format.MessageToString(written).encode())


def _root(folder: Storage) -> str:
    """Returns the folder as full paths begin: absolute on this machine."""
    local = local_path(folder.path)
    return folder.path if local is None else str(local.absolute())
