"""What belongs to a group as a whole: its history, its cut, its snapshots. Shared by `HashTable` and `TableGroup`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack, overload

from monolith.errors import FailedPreconditionError
from monolith.tables import snapshot
from monolith.tables.cut import ALL_BUCKETS, TableCut, bucket_bounds, row_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.tables._native_tables import NativeTables
    from monolith.tables.row_block import RowBlock
    from monolith.tables.schema import Schema
    from monolith.tables.snapshot import RestoreReport, SaveHandle, SaveOptions, SaveReport
    from monolith.tables.snapshot._location import SnapshotPath


class WholeGroup:
    """Calls about all tables of a group at once. A table of a larger group refuses them and names the group's."""

    native: NativeTables
    """The native group; for engine code."""
    _owns_group: bool

    @property
    def schema(self) -> Schema:
        """What the rows hold; two groups can exchange rows iff their schemas agree."""
        return self.native.schema

    def cut(self) -> TableCut:
        """Freezes the state of all tables while writers go on; release it when it was read."""
        self._require_owner("cut")
        return TableCut(self.native.core.cut())

    def mark(self) -> int:
        """Closes the current epoch and returns its number: later writes are in `changes(since=mark)`."""
        return self.native.core.mark()

    def changes(self, since: int = 0, *, buckets: range = ALL_BUCKETS, state: bool = True) -> Iterator[RowBlock]:
        """Current rows and tombstones of everything touched after a mark; 0: since the beginning."""
        self._require_owner("changes")
        return row_blocks(self.native.core.changes(since, bucket_bounds(buckets), state))

    def forget(self, before: int) -> None:
        """Promises that nobody will ask for changes before this mark, so that tombstones can be dropped."""
        self._require_owner("forget")
        self.native.core.forget(before)

    @overload
    def save(
        self, path: SnapshotPath, *, background: Literal[False] = False, **options: Unpack[SaveOptions]
    ) -> SaveReport: ...
    @overload
    def save(self, path: SnapshotPath, *, background: Literal[True], **options: Unpack[SaveOptions]) -> SaveHandle: ...
    def save(
        self, path: SnapshotPath, *, background: bool = False, **options: Unpack[SaveOptions]
    ) -> SaveReport | SaveHandle:
        """Writes one frozen state to a folder while writers go on; options are those of `snapshot.save`."""
        self._require_owner("save")
        return snapshot.save(self.native.core, path, background=background, **options)

    def restore(
        self, path: SnapshotPath, *, buckets: range | None = None, ignore_unknown_tables: bool = False
    ) -> RestoreReport:
        """Replaces what is here by what `save` wrote; a damaged or foreign folder leaves everything as it was."""
        self._require_owner("restore")
        return snapshot.restore(self.native.core, path, buckets=buckets, ignore_unknown_tables=ignore_unknown_tables)

    def close(self) -> None:
        """Stops the eviction threads that `evict_every_seconds` asked for. The tables stay usable."""
        self.native.close()

    def _require_owner(self, call: str) -> None:
        if not self._owns_group:
            names = ", ".join(self.native.names)
            raise FailedPreconditionError(
                f"{call}() is of the whole group ({names}), not of one table in it; write group.{call}(...)"
            )
