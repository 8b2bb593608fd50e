"""What has changed in a store, copied at one exact moment for which pushes are held only a little while.

A cut would do it, but only one can be open: a checkpoint that is being written would keep the record waiting. Instead
rows are copied while they change, then those that changed meanwhile, and so on until few are left; these are copied
while no push passes. Whoever loads all copies in their order has the rows of that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.tables.row_block import BlockKind, RowBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monolith.ps.hosted_rows import HostedRows

__all__ = ["RowCopy"]

_FEW_ROWS = 2048
"""Copied in about a millisecond."""
_MOST_PASSES = 6


class RowCopy:
    """One copy of what has changed in a store since an epoch. One thread.

    Args:
        rows: The store.
        since: Epoch; 0: all rows.
        take: Gets the blocks, in their order.
    """

    def __init__(self, rows: HostedRows, since: int, take: Callable[[bytes], None]) -> None:
        self.source = rows
        self.lineage = rows.lineage.number
        self._since = since
        self._take = take
        self.rows = 0
        """Copied so far; one that changed meanwhile counts again."""
        self.changes = 0
        """With removed ones."""

    def copy_beside(self) -> None:
        """While pushes pass, until few rows are left.

        Raises:
            FailedPreconditionError: the history that far back is not kept any more.
        """
        for _ in range(_MOST_PASSES):
            mark = self.source.history.mark().epoch
            before = self.changes
            self._copy(self.source.changes_since(self._since))
            self._since = mark
            if self.changes - before <= _FEW_ROWS:
                return

    def copy_rest(self) -> int:
        """While no push passes; the epoch of this moment. Nothing is given to `take` before `give_rest`."""
        end = self.source.history.mark().epoch
        self._rest = list(self.source.changes_since(self._since))
        return end

    def give_rest(self) -> None:
        """Hands over what `copy_rest` copied."""
        self._copy(self._rest)
        self._rest = []

    def _copy(self, blocks: Iterable[RowBlock]) -> None:
        for block in blocks:
            self._take(block.data)
            self.changes += block.count
            if block.kind is BlockKind.FULL:
                self.rows += block.count
