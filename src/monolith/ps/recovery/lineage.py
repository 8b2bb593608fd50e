"""Lineage of the rows of a store: which saved snapshots belong to their history."""

from __future__ import annotations

import secrets

__all__ = ["Lineage"]

_MOST_SNAPSHOTS = 64


class Lineage:
    """One unbroken history of some rows; it ends when they are replaced. Not thread-safe: the owner has the lock.

    Args:
        number: Number of a history that continues that of a previous process; None: a new one.
        snapshots: Snapshots of that history.
    """

    def __init__(self, number: int | None = None, snapshots: dict[int, int] | None = None) -> None:
        self.number = secrets.randbits(63) if number is None else number
        self.snapshots = dict(snapshots or {})
        """Snapshot id -> the epoch at which these rows were equal to the snapshot."""
        self.origin: int | None = None
        """Epoch at which the rows were restored from a snapshot; None: they were not."""

    def begin(self, snapshot_id: int | None, epoch: int) -> None:
        """Begins a new history, of rows replaced by those of a snapshot, at the mark of this epoch, or by others."""
        self.number = secrets.randbits(63)
        self.origin = None if snapshot_id is None else epoch
        self.snapshots = {} if snapshot_id is None else {snapshot_id: epoch}

    def saved_as(self, snapshot_id: int, epoch: int) -> None:
        """Adds a snapshot written at this epoch; it may never be committed."""
        self.snapshots[snapshot_id] = epoch
        while len(self.snapshots) > _MOST_SNAPSHOTS:
            del self.snapshots[next(iter(self.snapshots))]
