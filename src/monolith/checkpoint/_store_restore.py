"""Puts the tables of one checkpoint into one store: all of them, or those of the owners that have lost theirs."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Self

from monolith.checkpoint.part_owners import part_owners
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.local_store import agreed_stamps
from monolith.tables.row_block import BlockKind
from monolith.tables.snapshot.bucket_file import blocks_of
from monolith.tables.snapshot.location import open_source
from monolith.tables.snapshot.matching import match_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.tables.row_block import RowBlock
    from monolith.tables.snapshot.restore import RestoreReport
    from monolith.tables.store import PreparedRestore, Store

__all__ = ["StoreRestore"]

logger = logging.getLogger(__name__)


class StoreRestore:
    """A restore of one store that was read and checked; a context manager, which gives it up unless it was loaded.

    Where some owners have lost their rows and others have not, those get the rows that were saved and the others keep
    theirs, which are newer. What admission has counted is put back everywhere, as the original does.

    Args:
        store: The tables.
        folder: Of the snapshot.
        lost: Owners that have no state; None: everything is replaced.
    """

    def __init__(self, store: Store, folder: str, *, lost: Sequence[int] | None = None) -> None:
        self._store = store
        self._lost = lost
        self._owners = None if lost is None else part_owners(store)
        self._filters: list[tuple[range, list[RowBlock]]] = []
        with ExitStack() as undone:
            self.manifest = undone.enter_context(closing(open_source(folder))).manifest
            self._prepared: list[PreparedRestore] = [
                undone.enter_context(store.prepare_restore(folder, self.manifest, buckets=buckets))
                for buckets in self._lost_ranges()
            ]
            self._read_filters(folder)
            self._require_agreement()
            self._closing = undone.pop_all()

    def load(self, *, generation: int) -> list[RestoreReport]:
        """Replaces what the store holds, and how far it has come."""
        reports = [prepared.load() for prepared in self._prepared]
        if self._owners is None or self._lost is None:
            self._store.resume(applied=self.manifest.applied, generation=generation)
            return reports
        for buckets, blocks in self._filters:
            self._store.load(blocks, buckets=buckets, replace=False)
        if self._lost:
            self._owners.resume(self._lost, applied=self.manifest.applied, generation=generation)
        return reports

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _lost_ranges(self) -> list[range]:
        if self._owners is None or self._lost is None:
            return [ALL_BUCKETS]
        return [self._owners.owned[owner] for owner in self._lost]

    def _require_agreement(self) -> None:
        """Refuses before anything has changed what `resume` would refuse: batches that one owner cannot have in part.

        Raises:
            FailedPreconditionError: as said.
        """
        for owner, buckets in enumerate(getattr(self._store, "owned", (ALL_BUCKETS,))):
            if self._lost is None or owner in self._lost:
                agreed_stamps(self.manifest.applied, buckets)

    def _read_filters(self, folder: str) -> None:
        """Those of the owners that keep their rows."""
        if self._owners is None or self._lost is None:
            return
        tables = self._store.schema.tables
        match = match_tables(self.manifest, tables, ignore_unknown_tables=False, origin=f"folder '{folder}'")
        if list(match.targets) != list(range(len(tables))):
            logger.warning("'%s' has other tables: what admission has counted stays where rows stay", folder)
            return
        for owner, buckets in enumerate(self._owners.owned):
            if owner not in self._lost:
                found = blocks_of(folder, self.manifest, buckets, kinds={BlockKind.FILTER})
                self._filters.append((buckets, [block for block in found if block.bucket in buckets]))
