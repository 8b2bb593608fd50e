"""A consistent cut of rows in this process."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from monolith import _core
from monolith.errors import FailedPreconditionError
from monolith.tables.history import (
    ALL_BUCKETS,
    NUM_BUCKETS,
    Cut,
    OwnerClock,
    WrittenRows,
    bucket_bounds,
    shared_buckets,
)
from monolith.tables.local.history import row_blocks
from monolith.tables.local.joined import stamp_from_core
from monolith.tables.snapshot.files import bucket_ranges, file_name
from monolith.tables.snapshot.location import writing_folder
from monolith.tables.snapshot.manifest import FileEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.history import ChangePosition, SnapshotWriteConfig
    from monolith.tables.local.history import LocalHistory
    from monolith.tables.local.native_tables import NativeTables

_FILE_BYTES = 1 << 30
"""A file this large is read by several threads anyway; smaller ones save nothing for an owner of few buckets."""
_SMALL_BYTES = 64 << 20
"""Below this a second file and thread cost more than they bring."""
_MOST_FILES = 256
_MOST_THREADS = 4


class LocalCut(Cut):
    """`monolith.tables.Cut` of one native group, which has all buckets or consecutive ones.

    Only one cut of a group can be open. Writers continue: the old image of a row they change is kept for the cut until
    its bucket was read.
    """

    def __init__(
        self, native: NativeTables, history: LocalHistory, core: _core.Cut, owned: range = ALL_BUCKETS
    ) -> None:
        self._native = native
        self._history = history
        self._core = core
        self._owned = owned
        self._mark = history.at(core.epoch)

    @property
    def mark(self) -> ChangePosition:
        """Position of the cut in the history."""
        return self._mark

    @property
    def applied(self) -> Sequence[OwnerClock]:
        """The last batch of every worker in the rows."""
        return (OwnerClock(self._owned, {stamp.worker: stamp_from_core(stamp) for stamp in self._core.stamps}),)

    @property
    def rows(self) -> Mapping[str, int]:
        """Table -> its rows."""
        return dict(zip(self._native.names, self._core.count(), strict=True))

    @property
    def newest_times(self) -> Mapping[str, int]:
        """Table -> its newest update time."""
        return dict(zip(self._native.names, self._core.newest_times(), strict=True))

    def __len__(self) -> int:
        return sum(self._core.count())

    def blocks(
        self, buckets: range = ALL_BUCKETS, *, state: bool = True, since: ChangePosition | None = None
    ) -> Iterator[RowBlock]:
        """Yields the blocks; each bucket once per cut."""
        bucket_bounds(buckets)
        begin, end = bucket_bounds(shared_buckets(self._owned, buckets))
        epoch = None if since is None else self._history.epoch_of(since)
        if epoch is not None and epoch > self._mark.epoch:
            raise FailedPreconditionError(
                f"cut: mark {epoch} comes after this cut, which is of mark {self._mark.epoch}; ask a reader instead"
            )
        return row_blocks(self._core.blocks(begin, end, state, since=epoch))

    def write(self, folder: str, rules: SnapshotWriteConfig, *, transfer: _core.Transfer | None = None) -> WrittenRows:
        """Writes the bucket files of this owner."""
        threads = rules.threads or min(_MOST_THREADS, os.cpu_count() or 1)
        ranges = bucket_ranges(self._num_files(rules, threads), self._owned)
        with writing_folder(folder) as local:
            infos = _core.write_snapshot_files(
                self._core,
                [(str(local / file_name(begin, end, rules.snapshot_id)), begin, end) for begin, end in ranges],
                snapshot_id=rules.snapshot_id,
                state=rules.state,
                drop_expired=rules.drop_expired,
                bytes_per_second=int(rules.rate_bytes_per_second or 0),
                threads=threads,
                transfer=_core.Transfer() if transfer is None else transfer,
            )
        return WrittenRows(
            files=[_file_entry(info) for info in infos],
            rows={
                name: sum(info.rows_by_table.get(number, 0) for info in infos)
                for number, name in enumerate(self._native.names)
            },
            newest_times=self.newest_times,
        )

    def release(self) -> None:
        """Lets the group discard the old row images. Idempotent."""
        self._core.release()
        self._history.forget()  # what was kept for readers at its mark

    def _num_files(self, rules: SnapshotWriteConfig, threads: int) -> int:
        if rules.num_files is not None:
            return max(1, rules.num_files * len(self._owned) // NUM_BUCKETS)
        expected = self._native.schema.num_bytes(self.rows, state=rules.state)
        if expected < _SMALL_BYTES:
            return 1
        return min(_MOST_FILES, len(self._owned), max(threads, math.ceil(expected / _FILE_BYTES)))


def _file_entry(info: _core.SnapshotFileInfo) -> FileEntry:
    begin, end = info.buckets
    return FileEntry(
        name=file_name(begin, end, info.snapshot_id),
        begin=begin,
        end=end,
        bytes=info.bytes,
        index_crc32c=info.index_crc,
        rows=sum(info.rows_by_table.values()),
    )
