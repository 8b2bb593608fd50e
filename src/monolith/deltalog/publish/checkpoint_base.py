"""Checkpoints as bases of a delta log: a late follower starts at one and needs no older increments."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from monolith.checkpoint.inspection import SavedState
from monolith.checkpoint.state_files import checkpoint_exists
from monolith.deltalog import Base, store_of
from monolith.deltalog.publish.log_position import LogPosition
from monolith.files import basename
from monolith.tables.snapshot.location import open_source

if TYPE_CHECKING:
    from monolith.deltalog import DeltaLog


def add_checkpoint_base(log: DeltaLog, path: str) -> Base | None:
    """Adds a checkpoint of the run that writes a log as a base; removes bases whose checkpoints were deleted.

    Args:
        log: Log of the run.
        path: The prefix of the checkpoint.

    Returns:
        The base; None if the checkpoint does not contain the position of the log, or no part of it.

    Raises:
        NotFoundError: the checkpoint does not exist.
        OpError: the log is unreachable.
    """
    base = _base_of(log, path)
    if base is not None:
        log.add_base(base)
    for each in log.bases():
        if each.kind == "checkpoint" and not checkpoint_exists(each.path):
            log.remove_base(each.name)
    return base


def _base_of(log: DeltaLog, path: str) -> Base | None:
    saved = SavedState(path)
    manifest = saved.manifest
    position = LogPosition.of_checkpoint(manifest.positions, place=log.place, step=manifest.step)
    if position is None:
        return None
    buckets = {}
    for store, tables in manifest.tables.items():
        with closing(open_source(saved.folder.place(tables.folder))) as source:
            buckets[store] = source.manifest.buckets
    numbers = {part: number for part, number in position.numbers.items() if _is_held(part, buckets)}
    if not numbers:
        return None
    return Base(
        name=f"checkpoint-{basename(path)}",
        kind="checkpoint",
        path=path,
        numbers=numbers,
        stores={store: store for store in buckets},
        created_ms=int(1000 * manifest.created),
        step=manifest.step,
    )


def _is_held(part: str, buckets: dict[str, range]) -> bool:
    """Returns whether the checkpoint has all rows of a part; it always has the dense weights."""
    rows = store_of(part)
    if rows is None:
        return True
    held = buckets.get(rows[0])
    return held is not None and held.start <= rows[1].start and rows[1].stop <= held.stop
