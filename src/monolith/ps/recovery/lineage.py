"""What the rows of a store go back to: which saved snapshots are a moment of their history."""

from __future__ import annotations

import secrets

__all__ = ["Lineage"]

_MOST_SNAPSHOTS = 64


class Lineage:
    """One unbroken history of some rows. It ends when they are replaced. Whoever owns it sees to its lock.

    Args:
        number: Of a history that goes on after the process that had it; None: a new one.
        snapshots: Of that history.
    """

    def __init__(self, number: int | None = None, snapshots: dict[int, int] | None = None) -> None:
        self.number = secrets.randbits(63) if number is None else number
        self.snapshots = dict(snapshots or {})
        """Id of a snapshot -> the epoch at which these rows were what it holds."""
        self.origin: int | None = None
        """The epoch at which the rows were put back from a snapshot, if they were."""

    def begin(self, snapshot_id: int | None, epoch: int) -> None:
        """The rows were replaced: by those of a snapshot, at the mark of this epoch, or by others."""
        self.number = secrets.randbits(63)
        self.origin = None if snapshot_id is None else epoch
        self.snapshots = {} if snapshot_id is None else {snapshot_id: epoch}

    def saved_as(self, snapshot_id: int, epoch: int) -> None:
        """The rows of this epoch were written; whether that snapshot will count is not known."""
        self.snapshots[snapshot_id] = epoch
        while len(self.snapshots) > _MOST_SNAPSHOTS:
            del self.snapshots[next(iter(self.snapshots))]
