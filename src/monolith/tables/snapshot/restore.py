"""Puts a snapshot, or some buckets of one, into a group. An error leaves the group as it was.

Files are read twice, to be checked before anything is changed, unless the group is blank: then every block is checked
on its way into the group, and clearing it brings back what it was.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from monolith import _core
from monolith.errors import FailedPreconditionError
from monolith.tables.cut import ALL_BUCKETS, bucket_bounds
from monolith.tables.schema import TableSchema
from monolith.tables.snapshot._location import Source, open_source
from monolith.tables.snapshot._rules import TableMatch, match_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.tables.bucket_owner import BucketOwner
    from monolith.tables.snapshot._location import SnapshotPath
    from monolith.tables.snapshot.manifest import FileEntry, Json, Manifest

_MOST_THREADS = 8
_THREADS_PER_CORE = 2
"""While one waits for the disk, the other writes rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What a restore did."""

    rows: dict[str, int]
    """Table name to rows loaded."""
    missing_tables: tuple[str, ...]
    """Tables of the group that the snapshot does not have; they are empty now."""
    ignored_tables: tuple[str, ...]
    """Tables of the snapshot that were left out."""
    notes: tuple[str, ...]
    """What is not exactly as it was saved, such as optimizer state that starts anew; one readable line each."""
    generation: int
    epoch: int
    applied: Json
    """As given to `save`."""
    extra: Json
    """As given to `save`."""


def restore(
    group: _core.Group,
    path: SnapshotPath,
    *,
    buckets: range | None = None,
    ignore_unknown_tables: bool = False,
) -> RestoreReport:
    """Replaces what the group holds in some buckets by what a snapshot holds there.

    Tables are matched by name, segments by position; docs/formats/snapshot.md has the rules. Admission is not asked,
    and rows keep their times. An error leaves the group as it was.

    Args:
        group: the tables.
        path: a folder that `save` wrote, local or any fsspec path.
        buckets: consecutive buckets to restore, such as those an owner is responsible for; None: all. Only their files
            are read, and other buckets of the group stay as they are.
        ignore_unknown_tables: leave out tables that only the snapshot has, instead of refusing.

    Raises:
        NotFoundError: there is no snapshot, or a file of it is missing.
        DataLossError: a file is not what was written; names the file, the offset and the reason.
        FailedPreconditionError: the group cannot take a table or segment, or has an open cut.
        UnavailableError: the path is being written to.
    """
    with PreparedRestore(group, path, buckets=buckets, ignore_unknown_tables=ignore_unknown_tables) as prepared:
        return prepared.load()


class PreparedRestore:
    """A restore whose files were read and checked, and that can still be given up: for those who restore several.

    A blank group has the rows already and loses them again if it is closed without `load`; any other is as it was.
    Keeps the folder from being replaced until `close`. Arguments and errors are those of `restore`.
    """

    def __init__(
        self,
        group: _core.Group,
        path: SnapshotPath,
        *,
        buckets: range | None = None,
        ignore_unknown_tables: bool = False,
    ) -> None:
        self._group = group
        self._source = open_source(path)
        self._loaded_early: list[int] | None = None
        try:
            self._reading = _Reading(
                group, self._source, origin=f"folder '{path}'", buckets=ALL_BUCKETS if buckets is None else buckets
            )
            self._match = self._reading.match(ignore_unknown_tables=ignore_unknown_tables)
            if _core.is_blank(group):
                self._loaded_early = self._load_blank()
            else:
                self._reading.check(self._match)
        except BaseException:
            self._source.close()
            raise

    def load(self) -> RestoreReport:
        """Replaces what the group holds."""
        group, match, manifest = self._group, self._match, self._source.manifest
        rows, self._loaded_early = self._loaded_early, None
        if rows is None:
            group.clear_buckets(*self._reading.bounds)
            rows = self._reading.load(match)
        return RestoreReport(
            rows={group.table_name(number): count for number, count in enumerate(rows)},
            missing_tables=match.missing,
            ignored_tables=match.ignored,
            notes=match.notes,
            generation=manifest.generation,
            epoch=manifest.epoch,
            applied=manifest.applied,
            extra=manifest.extra,
        )

    def close(self) -> None:
        """Lets go of the folder. Calling it again does nothing."""
        if self._loaded_early is not None:
            self._loaded_early = None
            self._group.clear()
        self._source.close()

    def _load_blank(self) -> list[int]:
        self._group.clear_buckets(*self._reading.bounds)  # refuses an open cut
        try:
            return self._reading.load(self._match)
        except BaseException:
            self._group.clear()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PreparedRestores:
    """`PreparedRestore` for the owners of all buckets: each takes its own from the snapshot, whoever wrote it."""

    def __init__(self, owners: Sequence[BucketOwner], path: SnapshotPath) -> None:
        with ExitStack() as undone:
            self._each = [
                undone.enter_context(PreparedRestore(owner.group, path, buckets=owner.buckets)) for owner in owners
            ]
            self._closing = undone.pop_all()

    def load(self) -> RestoreReport:
        """Replaces what the owners hold."""
        reports = [each.load() for each in self._each]
        rows = {table: sum(report.rows[table] for report in reports) for table in reports[0].rows}
        return replace(reports[0], rows=rows)

    def close(self) -> None:
        """Lets go of the folder. Calling it again does nothing."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def verify(group: _core.Group, path: SnapshotPath, *, ignore_unknown_tables: bool = False) -> Manifest:
    """Reads every byte of a snapshot and checks that the group could take it; changes nothing.

    Raises:
        OpError: what `restore` would raise.
    """
    with closing(open_source(path)) as source:
        reading = _Reading(group, source, origin=f"folder '{path}'", buckets=source.manifest.buckets)
        reading.check(reading.match(ignore_unknown_tables=ignore_unknown_tables))
        return source.manifest


class _Reading:
    """A snapshot's files on their way into a group."""

    def __init__(self, group: _core.Group, source: Source, *, origin: str, buckets: range) -> None:
        self.bounds = bucket_bounds(buckets)
        self._group = group
        self._source = source
        self._origin = origin
        self._threads = min(_MOST_THREADS, _THREADS_PER_CORE * (os.cpu_count() or 1))
        self._files = self._fetch()

    def match(self, *, ignore_unknown_tables: bool) -> TableMatch:
        """How the tables go together."""
        schemas = [
            TableSchema.parse(self._group.table_name(number), self._group.schema(number))
            for number in range(self._group.num_tables)
        ]
        return match_tables(
            self._source.manifest, schemas, ignore_unknown_tables=ignore_unknown_tables, origin=self._origin
        )

    def check(self, match: TableMatch) -> None:
        """Reads everything once."""
        _core.check_snapshot(self._group, self._files, **self._reading(match))

    def _reading(self, match: TableMatch) -> dict[str, Any]:
        return {
            "buckets": self.bounds,
            "tables": match.targets,
            "source_schemas": match.source_schemas,
            "threads": self._threads,
            "transfer": _core.Transfer(),
        }

    def load(self, match: TableMatch) -> list[int]:
        """Writes everything into the group; rows by table."""
        rows = _core.load_snapshot(self._group, self._files, **self._reading(match))
        for table, number in zip(self._source.manifest.tables, match.targets, strict=True):
            if number >= 0:
                self._group.raise_newest_time(number, table.newest_time)
        return rows

    def _fetch(self) -> list[_core.SnapshotFileInfo]:
        manifest = self._source.manifest
        begin, end = self.bounds
        held = manifest.buckets
        if begin < held.start or end > held.stop:
            raise FailedPreconditionError(
                f"{self._origin}: buckets [{begin}, {end}) wanted, the snapshot holds [{held.start}, {held.stop})"
            )
        files = [file for file in manifest.files if file.end > begin and file.begin < end]
        paths = self._source.fetch(files)
        return [_info(file, str(path), manifest) for file, path in zip(files, paths, strict=True)]


def _info(file: FileEntry, path: str, manifest: Manifest) -> _core.SnapshotFileInfo:
    return _core.SnapshotFileInfo(path, manifest.snapshot_id, (file.begin, file.end), file.bytes, file.index_crc32c)
