"""Copies the changes of a store, consistent at one epoch, while holding pushes only briefly.

A cut would do, but only one can be open: a checkpoint in progress would block the record. Instead rows are copied while
they change, then those that changed meanwhile, and so on until few are left; these are copied while pushes are held.
Loading all copies in order restores the rows at that epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.tables.formats.row_block import BlockKind, RowBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monolith.ps.server.hosted_rows import HostedRows

__all__ = ["RowCopy"]

_FEW_ROWS = 2048
"""Copied in about a millisecond."""
_MOST_PASSES = 6


class RowCopy:
    """One copy of the changes of a store since an epoch. Not thread-safe.

    Args:
        rows: The store.
        since: Epoch; 0: all rows.
        take: Receives the blocks, in order.
    """

    def __init__(self, rows: HostedRows, since: int, take: Callable[[bytes], None]) -> None:
        self.source = rows
        self.lineage = rows.lineage.number
        self._since = since
        self._take = take
        self.rows = 0
        """Number of rows copied so far; a row that changed meanwhile counts again."""
        self.changes = 0
        """Number of rows and removals copied so far."""

    def copy_beside(self) -> None:
        """Copies changes while pushes pass, until few rows are left.

        Raises:
            FailedPreconditionError: the history does not reach back to the epoch any more.
        """
        for _ in range(_MOST_PASSES):
            mark = self.source.history.mark().epoch
            before = self.changes
            self._copy(self.source.changes_since(self._since))
            self._since = mark
            if self.changes - before <= _FEW_ROWS:
                return

    def copy_rest(self) -> int:
        """Copies the rest while pushes are held; returns the epoch. `take` gets it with `give_rest`."""
        end = self.source.history.mark().epoch
        self._rest = list(self.source.changes_since(self._since))
        return end

    def give_rest(self) -> None:
        """Passes the blocks of `copy_rest` to `take`."""
        self._copy(self._rest)
        self._rest = []

    def _copy(self, blocks: Iterable[RowBlock]) -> None:
        for block in blocks:
            self._take(block.data)
            self.changes += block.count
            if block.kind is BlockKind.FULL:
                self.rows += block.count
