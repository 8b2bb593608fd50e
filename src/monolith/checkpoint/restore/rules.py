"""Which checkpoint a run starts from: the latest, a named one (`restore_ckpt`), or another run's (`restore_dir`).

Both rules are applied once and leave a marker, so that a restarted run resumes from its own checkpoints.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from typing import TYPE_CHECKING

from monolith.background import Backoff
from monolith.checkpoint.catalog import full_local_path, step_of
from monolith.checkpoint.protos.checkpoint_state_pb2 import CheckpointState, MonolithCheckpointState
from monolith.checkpoint.state_files import (
    CHECKPOINT,
    MONOLITH_CHECKPOINT,
    get_monolith_checkpoint_state,
    read_checkpoint_state,
    split_path,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)
from monolith.clock import Clock, SystemClock
from monolith.errors import DataLossError, DeadlineExceededError, OpError
from monolith.files import StoragePath, open_storage

if TYPE_CHECKING:
    from monolith.checkpoint.options import RestoreConfig
    from monolith.files import Storage


logger = logging.getLogger(__name__)

RESTORE_CKPT = "restore_ckpt"
"""Marker file: `restore_ckpt` was applied; holds its path."""

READS = 5
_PAUSE_SECONDS = 0.1
POLL_SECONDS = 30.0


def get_checkpoint_state(
    checkpoint_dir: StoragePath,
    latest_filename: str | None = None,
    *,
    restore_ckpt: str | None = None,
    training: bool = True,
    clock: Clock | None = None,
) -> CheckpointState | None:
    """Returns the contents of `checkpoint`, with full paths, and with `restore_ckpt` as the one to start from.

    A file that exists but cannot be read, as while another process replaces it, is read again.

    Args:
        checkpoint_dir: The model directory.
        latest_filename: Name of the state file, `checkpoint` by default.
        restore_ckpt: Base name of a listed checkpoint. Training applies it once: it rewrites the file, and leaves the
            marker `restore_ckpt`. Otherwise it is applied at each call, and nothing is written.
        training: Whether the caller trains.
        clock: Waits between reads.

    Returns:
        None if there is no such file.

    Raises:
        DataLossError: ``read ckpt error!``, after five reads.
    """
    folder = open_storage(checkpoint_dir)
    filename = CHECKPOINT if latest_filename is None else latest_filename
    state = _read_again(folder, filename, clock or SystemClock())
    if state is None or not restore_ckpt or filename != CHECKPOINT:
        return state
    return _choose(folder, state, restore_ckpt, training=training)


def _read_again(folder: Storage, filename: str, clock: Clock) -> CheckpointState | None:
    for pause in Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS, tries=READS):
        state = read_checkpoint_state(folder, filename)
        if state is not None or not folder.exists(filename):
            return state
        if pause is not None:
            clock.sleep(pause)
    raise DataLossError("read ckpt error!")  # the text of ByteDance Monolith


def _choose(folder: Storage, state: CheckpointState, restore_ckpt: str, *, training: bool) -> CheckpointState:
    path = f"{split_path(state.model_checkpoint_path)[0]}/{restore_ckpt.rstrip('/').rpartition('/')[2]}"
    if path not in state.all_model_checkpoint_paths:
        logger.warning(
            "restore_ckpt '%s' is not listed in '%s' (%s); the latest is used",
            path,
            folder.place(CHECKPOINT),
            list(state.all_model_checkpoint_paths),
        )
        return state
    if training and folder.exists(RESTORE_CKPT):
        return state
    if path == state.model_checkpoint_path:
        logger.warning("restore_ckpt '%s' is the latest checkpoint already", path)
    state.model_checkpoint_path = path
    if training:
        write_checkpoint_state(folder, state)
        folder.replace(RESTORE_CKPT, path.encode())
    return state


def copy_checkpoint_state(restore_dir: StoragePath, model_dir: StoragePath, *, restore_ckpt: str | None = None) -> bool:
    """Makes an empty model directory start from a checkpoint of another one, which retention will not delete.

    The chief calls it; other processes wait in `wait_for_monolith_checkpoint`. Errors are logged as warnings.

    Args:
        restore_dir: The other directory.
        model_dir: This one; unchanged if it has a `checkpoint` already.
        restore_ckpt: Base name of the checkpoint to take; the latest if it is None or not listed.

    Returns:
        Whether anything was written.
    """
    source, target = open_storage(restore_dir), open_storage(model_dir)
    if target.exists(CHECKPOINT):
        return False
    try:
        state = read_checkpoint_state(source)
        if state is None:
            logger.warning("restore_dir '%s': no checkpoint there; starting from nothing", restore_dir)
            return False
        _write_copy(source, target, _source_path(state, restore_ckpt), restore_ckpt)
    except OpError as error:
        logger.warning("restore_dir '%s': %s", restore_dir, error)
        return False
    return True


def _source_path(state: CheckpointState, restore_ckpt: str | None) -> str:
    if restore_ckpt is None:
        return state.model_checkpoint_path
    name = restore_ckpt.rstrip("/").rpartition("/")[2]
    for path in state.all_model_checkpoint_paths:
        if split_path(path)[1] == name:
            return path
    logger.warning("restore_ckpt %r is not listed in the restore_dir; its latest checkpoint is used", name)
    return state.model_checkpoint_path


def _write_copy(source: Storage, target: Storage, path: str, restore_ckpt: str | None) -> None:
    target.make()
    copied = CheckpointState(model_checkpoint_path=path, all_model_checkpoint_paths=[path])
    write_checkpoint_state(target, copied)
    if restore_ckpt is not None:
        target.replace(RESTORE_CKPT, path.encode())
    theirs = get_monolith_checkpoint_state(source.path) if source.exists(MONOLITH_CHECKPOINT) else None
    ours = get_monolith_checkpoint_state(target.path) if target.exists(MONOLITH_CHECKPOINT) else None
    written = MonolithCheckpointState() if ours is None else ours
    if theirs is not None and theirs.HasField("builtin_hash_table_type"):
        written.builtin_hash_table_type = theirs.builtin_hash_table_type
    if path not in written.exempt_model_checkpoint_paths:
        written.exempt_model_checkpoint_paths.append(path)
    # Last: others wait for it.
    write_monolith_checkpoint_state(target, written)


def wait_for_monolith_checkpoint(
    model_dir: StoragePath, *, timeout_seconds: float | None = None, clock: Clock | None = None
) -> None:
    """Waits until the chief has prepared the directory; polls every 30 seconds.

    Raises:
        DeadlineExceededError: it was not prepared within `timeout_seconds`; None waits for ever.
    """
    folder, clock = open_storage(model_dir), clock or SystemClock()
    begun = clock.monotonic()
    while not folder.exists(MONOLITH_CHECKPOINT):
        if timeout_seconds is not None and clock.monotonic() - begun >= timeout_seconds:
            raise DeadlineExceededError(
                f"model directory '{folder.path}': no {MONOLITH_CHECKPOINT} within {timeout_seconds} s; is the chief"
                " running?"
            )
        logger.info("waiting for the chief to prepare '%s'", folder.place(MONOLITH_CHECKPOINT))
        clock.sleep(POLL_SECONDS)


class _StateCache:
    """The last state read of each directory, and the step at which it was read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, tuple[int, CheckpointState | None]] = {}

    def get(self, checkpoint_dir: str, step: int) -> CheckpointState | None:
        with self._lock:
            read_at, state = self._states.get(checkpoint_dir, (-1, None))
            if state is None or step > read_at:
                state = get_checkpoint_state(checkpoint_dir)
                self._states[checkpoint_dir] = (step, state)
            return state


_CACHE = _StateCache()


def get_latest_checkpoint_state(checkpoint_dir: StoragePath, global_step_value: int) -> CheckpointState | None:
    """Like `get_checkpoint_state`, but reads again only when the step has grown, or no file was found before."""
    return _CACHE.get(full_local_path(str(checkpoint_dir)), global_step_value)


class SaveHelper:
    """Names around checkpoints, and which steps a directory has.

    Args:
        checkpoint_dir: The model directory.
    """

    def __init__(self, checkpoint_dir: StoragePath) -> None:
        self._checkpoint_dir = checkpoint_dir

    @staticmethod
    def get_ckpt_prefix(basename: str, step: int) -> str:
        """Returns the prefix of a step: ``model.ckpt``, 60 -> ``model.ckpt-60``."""
        return f"{basename}-{step}"

    @staticmethod
    def get_ckpt_asset_dir(ckpt_prefix: str) -> str:
        """Returns the folder of tables: ``model.ckpt-60`` -> ``model.ckpt-60.assets/``."""
        return f"{ckpt_prefix}.assets/"

    @staticmethod
    def get_global_step_value(ckpt_prefix: str) -> int:
        """Returns the step of a prefix: ``model.ckpt-60`` -> 60."""
        return step_of(ckpt_prefix)

    def get_existing_checkpoint_steps(self) -> set[int]:
        """Returns the steps of everything that `checkpoint` lists."""
        state = get_checkpoint_state(self._checkpoint_dir)
        return set() if state is None else {step_of(path) for path in state.all_model_checkpoint_paths}


MARKER = "leave_out"
"""File of the model directory: the patterns, and the step of the checkpoint that they were applied to."""


def is_left_out_already(folder: Storage, path: str, options: RestoreConfig) -> bool:
    """Returns whether the checkpoint at `path` was written after the same `leave_out` was applied to an earlier one."""
    if not options.leave_out or not folder.exists(MARKER):
        return False
    applied = json.loads(folder.read(MARKER))
    return list(options.leave_out) == applied["leave_out"] and step_of(path) > int(applied["step"])


def record_left_out(folder: Storage, path: str, options: RestoreConfig) -> None:
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
