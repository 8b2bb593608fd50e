"""Loads a snapshot, or some buckets of one, into a store. An error leaves the store unchanged.

The rules for tables that differ are in docs/formats/snapshot.md.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.schema import TableSchema
from monolith.tables.snapshot.location import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.tables.history import OwnerClock
    from monolith.tables.schema import SegmentSchema
    from monolith.tables.snapshot.location import SnapshotPath
    from monolith.tables.snapshot.manifest import Json, SnapshotManifest
    from monolith.tables.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """Result of a restore."""

    rows: Mapping[str, int]
    """Table name to rows loaded."""
    missing_tables: tuple[str, ...]
    """Tables of the store that the snapshot does not have; they are empty now."""
    ignored_tables: tuple[str, ...]
    """Tables of the snapshot that were skipped."""
    notes: tuple[str, ...]
    """What differs from the saved state, such as optimizer state that was reset; one readable line each."""
    generation: int
    epoch: int
    applied: Sequence[OwnerClock]
    """The last batch of every worker in the rows."""
    extra: Json
    """As given to `save`."""


def restore(
    store: Store, path: SnapshotPath, *, buckets: range | None = None, ignore_unknown_tables: bool = False
) -> RestoreReport:
    """Replaces what the store holds in some buckets by what a snapshot holds there.

    Tables are matched by name, segments by position; docs/formats/snapshot.md has the rules. Admission does not apply,
    and rows keep their times. An error leaves the store unchanged.

    Args:
        store: the tables.
        path: a folder that `save` wrote, local or any fsspec path.
        buckets: consecutive buckets to restore, such as those an owner is responsible for; None: all. Only their files
            are read, and other buckets of the store stay as they are.
        ignore_unknown_tables: skip tables that only the snapshot has, instead of raising.

    Raises:
        NotFoundError: there is no snapshot, or a file of it is missing.
        DataLossError: a file is damaged; names the file, the offset and the reason.
        FailedPreconditionError: the store cannot load a table or segment, or has an open cut.
        UnavailableError: the path is being written to.
    """
    restored = ALL_BUCKETS if buckets is None else buckets
    with closing(open_source(path)) as source:
        preparing = store.prepare_restore(
            str(path), source.manifest, buckets=restored, ignore_unknown_tables=ignore_unknown_tables
        )
        with preparing as prepared:
            return prepared.load()


def verify(store: Store, path: SnapshotPath, *, ignore_unknown_tables: bool = False) -> SnapshotManifest:
    """Reads every byte of a snapshot and checks that the store could load it; changes nothing.

    Raises:
        OpError: what `restore` would raise.
    """
    with closing(open_source(path)) as source:
        manifest = source.manifest
        with store.prepare_restore(
            str(path), manifest, buckets=manifest.buckets, ignore_unknown_tables=ignore_unknown_tables
        ):
            return manifest


def report_of(manifest: SnapshotManifest, match: TableMatch, rows: Mapping[str, int]) -> RestoreReport:
    """Returns the report of a restore that loaded these rows."""
    return RestoreReport(
        rows=rows,
        missing_tables=match.missing,
        ignored_tables=match.ignored,
        notes=match.notes,
        generation=manifest.generation,
        epoch=manifest.epoch,
        applied=manifest.applied,
        extra=manifest.extra,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMatch:
    """The matching of a snapshot's tables with those of a group."""

    targets: list[int]
    """By table number of the snapshot: number in the group, -1 for a table that is skipped."""
    source_schemas: list[str]
    """By table number of the group: schema text of its rows in the snapshot, empty where that has no such table."""
    ignored: tuple[str, ...]
    """Tables only the snapshot has."""
    missing: tuple[str, ...]
    """Tables only the group has."""
    notes: tuple[str, ...]
    """What differs from the saved state, one readable line each."""


def match_tables(
    manifest: SnapshotManifest, group: Sequence[TableSchema], *, ignore_unknown_tables: bool, origin: str
) -> TableMatch:
    """Applies the rules.

    Raises:
        FailedPreconditionError: a table or segment that the group cannot take, by name and reason.
    """
    numbers = {table.name: number for number, table in enumerate(group)}
    ignored = tuple(table.name for table in manifest.tables if table.name not in numbers)
    if ignored and not ignore_unknown_tables:
        raise FailedPreconditionError(
            f"{origin}: the snapshot has tables {list(ignored)} that this group ({sorted(numbers)}) does not have;"
            " add them, or pass ignore_unknown_tables=True (--ignore_unknown_tables of monolith train) to skip them"
        )
    source_schemas = [""] * len(group)
    notes: list[str] = []
    for table in manifest.tables:
        if table.name in numbers:
            number = numbers[table.name]
            source = TableSchema.parse(table.name, table.schema)
            full_rows = manifest.state and not source.serving
            notes += _check_segments(source, group[number], full_rows=full_rows, origin=origin)
            source_schemas[number] = table.schema
    return TableMatch(
        targets=[numbers.get(table.name, -1) for table in manifest.tables],
        source_schemas=source_schemas,
        ignored=ignored,
        missing=tuple(name for name, number in numbers.items() if not source_schemas[number]),
        notes=tuple(notes),
    )


def _check_segments(source: TableSchema, target: TableSchema, *, full_rows: bool, origin: str) -> list[str]:
    subject = f"{origin}: table {source.name!r}"
    if len(source.segments) > len(target.segments):
        number = len(target.segments)
        raise FailedPreconditionError(
            f"{subject}: segment {number} of the snapshot (dim {source.segments[number].dim}) does not exist in this"
            f" table, which has {number} segments; a segment cannot be removed"
        )
    added = range(len(source.segments), len(target.segments))
    if added and (target.serving or not full_rows):
        raise FailedPreconditionError(
            f"{subject}: segment {added[0]} of this table does not exist in the snapshot; only a training table"
            " restored from full rows can gain a segment"
        )
    notes = [f"table {source.name!r}, segment {number}: new, starts from its initializer" for number in added]
    for number, (old, new) in enumerate(zip(source.segments, target.segments, strict=False)):
        notes += _check_segment(f"{subject}, segment {number}", old, new, full_rows=full_rows, serving=target.serving)
    return notes


def _check_segment(
    subject: str, old: SegmentSchema, new: SegmentSchema, *, full_rows: bool, serving: bool
) -> list[str]:
    if old.dim != new.dim:
        raise FailedPreconditionError(f"{subject}: dim {old.dim} in the snapshot, {new.dim} in this table")
    if not full_rows and (old.compressor, old.compressed_bytes) != (new.compressor, new.compressed_bytes):
        raise FailedPreconditionError(
            f"{subject}: the snapshot holds rows compressed by {old.compressor}, this table uses {new.compressor}"
        )
    if serving:
        return []
    kept = full_rows and (old.optimizer, old.state_bytes) == (new.optimizer, new.state_bytes)
    if kept or new.state_bytes == 0:
        return []
    reason = f"of {old.optimizer}" if full_rows else "not in the snapshot"
    return [f"{subject}: state {reason}, {new.optimizer} starts from scratch"]
