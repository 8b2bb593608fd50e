"""A consistent cut of rows in this process, and the restore of files that cuts have written.

An error of a restore leaves the group unchanged. Files are read twice, to be checked before anything is changed, unless
the group is blank: then every block is checked as it is loaded, and clearing the group undoes the load.
"""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

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
from monolith.tables.local.plan import stamp_from_core
from monolith.tables.snapshot.location import fetched_files, writing_folder
from monolith.tables.snapshot.manifest import FileEntry, bucket_ranges, file_name
from monolith.tables.snapshot.restore import RestoreReport, match_tables, report_of
from monolith.tables.store import PreparedRestore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.history import ChangePosition, SnapshotWriteConfig
    from monolith.tables.local.group_store import RowGroup
    from monolith.tables.local.history import LocalHistory
    from monolith.tables.local.native_tables import NativeTables
    from monolith.tables.snapshot.manifest import SnapshotManifest

_FILE_BYTES = 1 << 30
"""A file this large is read by several threads anyway; smaller ones save nothing for an owner of few buckets."""
_SMALL_BYTES = 64 << 20
"""Below this a second file and thread cost more than they bring."""
_MOST_FILES = 256
_MOST_THREADS = 4
_MOST_READERS = 8
_READERS_PER_CORE = 2
"""While one thread waits for the disk, the other writes rows."""


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


class LocalRestore(PreparedRestore):
    """`monolith.tables.store.PreparedRestore` of one native group.

    A blank group has the rows already and loses them again if the context ends without `load`; any other group is
    unchanged until `load`. When all buckets of a store are replaced, an owner empties more than it reads, to reset
    newest times too.
    """

    def __init__(
        self,
        native: NativeTables,
        folder: str,
        manifest: SnapshotManifest,
        buckets: range,
        *,
        emptied: range,
        ignore_unknown_tables: bool,
        group: RowGroup | None = None,
    ) -> None:
        """`group` has the rows; None: that of `native`."""
        self._native = native
        self._group = native.core if group is None else group
        self._manifest = manifest
        self._bounds = bucket_bounds(buckets)
        self._emptied = bucket_bounds(emptied)
        origin = f"folder '{folder}'"
        _require_held(manifest, buckets, origin)
        self._match = match_tables(
            manifest, native.schema.tables, ignore_unknown_tables=ignore_unknown_tables, origin=origin
        )
        self._loaded_early: list[int] | None = None
        with ExitStack() as undone:
            files = [file for file in manifest.files if file.end > buckets.start and file.begin < buckets.stop]
            paths = undone.enter_context(fetched_files(folder, files))
            self._files = [_info(file, str(path), manifest) for file, path in zip(files, paths, strict=True)]
            if _core.is_blank(self._group):
                self._loaded_early = self._load_blank()
            else:
                _core.check_snapshot(self._group, self._files, **self._reading())
            self._closing = undone.pop_all()

    def load(self) -> RestoreReport:
        """Replaces the rows of the group in these buckets."""
        rows, self._loaded_early = self._loaded_early, None
        if rows is None:
            self._group.clear_buckets(*self._emptied)
            rows = self._load()
        return report_of(self._manifest, self._match, dict(zip(self._native.names, rows, strict=True)))

    def __exit__(self, *_: object) -> None:
        if self._loaded_early is not None:
            self._loaded_early = None
            self._group.clear()
        self._closing.close()

    def _load_blank(self) -> list[int]:
        self._group.clear_buckets(*self._emptied)  # raises if a cut is open
        try:
            return self._load()
        except BaseException:
            self._group.clear()
            raise

    def _load(self) -> list[int]:
        """Returns rows by table."""
        rows = _core.load_snapshot(self._group, self._files, **self._reading())
        for table, number in zip(self._manifest.tables, self._match.targets, strict=True):
            if number >= 0:
                self._group.raise_newest_time(number, table.newest_time)
        return rows

    def _reading(self) -> dict[str, Any]:
        return {
            "buckets": self._bounds,
            "tables": self._match.targets,
            "source_schemas": self._match.source_schemas,
            "threads": min(_MOST_READERS, _READERS_PER_CORE * (os.cpu_count() or 1)),
            "transfer": _core.Transfer(),
        }


def _require_held(manifest: SnapshotManifest, buckets: range, origin: str) -> None:
    held = manifest.buckets
    if buckets and (buckets.start < held.start or buckets.stop > held.stop):  # an owner may have none of a part
        raise FailedPreconditionError(
            f"{origin}: buckets [{buckets.start}, {buckets.stop}) wanted, the snapshot holds"
            f" [{held.start}, {held.stop})"
        )


def _info(file: FileEntry, path: str, manifest: SnapshotManifest) -> _core.SnapshotFileInfo:
    return _core.SnapshotFileInfo(path, manifest.snapshot_id, (file.begin, file.end), file.bytes, file.index_crc32c)
