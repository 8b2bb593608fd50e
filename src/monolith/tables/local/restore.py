"""Loads the files of a snapshot, or of some buckets of one, into a native group. An error leaves the group unchanged.

Files are read twice, to be checked before anything is changed, unless the group is blank: then every block is checked
as it is loaded, and clearing the group undoes the load.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from monolith import _core
from monolith.errors import FailedPreconditionError
from monolith.tables.history import bucket_bounds
from monolith.tables.snapshot.location import fetched_files
from monolith.tables.snapshot.restore import RestoreReport, match_tables, report_of
from monolith.tables.store import PreparedRestore

if TYPE_CHECKING:
    from monolith.tables.local.native_tables import NativeTables
    from monolith.tables.snapshot.manifest import FileEntry, SnapshotManifest

_MOST_THREADS = 8
_THREADS_PER_CORE = 2
"""While one thread waits for the disk, the other writes rows."""


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
    ) -> None:
        self._native = native
        self._group = native.core
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
            "threads": min(_MOST_THREADS, _THREADS_PER_CORE * (os.cpu_count() or 1)),
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
