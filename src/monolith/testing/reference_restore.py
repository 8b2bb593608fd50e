"""Loads the files of a snapshot into the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.snapshot.bucket_file import blocks_of
from monolith.tables.snapshot.matching import match_tables
from monolith.tables.snapshot.restore import RestoreReport, report_of
from monolith.tables.store import PreparedRestore
from monolith.testing.reference_blocks import check_block

if TYPE_CHECKING:
    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.snapshot.manifest import Manifest
    from monolith.testing.reference_store import ReferenceStore


class ReferenceRestore(PreparedRestore):
    """All blocks, read and checked; rows of another shape than the tables' own are rejected."""

    def __init__(
        self, store: ReferenceStore, folder: str, manifest: Manifest, buckets: range, *, ignore_unknown_tables: bool
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._buckets = buckets
        origin = f"folder '{folder}'"
        held = manifest.buckets
        if buckets and (buckets.start < held.start or buckets.stop > held.stop):
            raise FailedPreconditionError(f"{origin}: {buckets} wanted, the snapshot holds {held}")
        self._match = match_tables(
            manifest, store.schema.tables, ignore_unknown_tables=ignore_unknown_tables, origin=origin
        )
        self._blocks = [
            block
            for block in blocks_of(folder, manifest, buckets)
            if block.bucket in buckets and (block.kind is BlockKind.FILTER or self._target(block) >= 0)
        ]
        for block in self._blocks:
            check_block(store.tables, block, table=self._target(block))

    def load(self) -> RestoreReport:
        """Replaces the contents of the store in these buckets."""
        tables = self._store.tables
        with self._store.lock:
            self._store.take(self._blocks, self._target, emptied=self._buckets)
            for source, number in zip(self._manifest.tables, self._match.targets, strict=True):
                if number >= 0:
                    contents = tables[number].contents
                    contents.newest_time = max(contents.newest_time, source.newest_time)
        rows = dict.fromkeys(self._store.schema.names, 0)
        for block in self._blocks:
            if block.kind is BlockKind.FULL:
                rows[tables[self._target(block)].schema.name] += block.count
        return report_of(self._manifest, self._match, rows)

    def __exit__(self, *_: object) -> None:
        self._blocks = []

    def _target(self, block: RowBlock) -> int:
        """Returns the target table of a block's rows; -1: none."""
        number: int = self._match.targets[block.table]
        return number
