"""Matches the tables and rows of a snapshot with those of a group. The rules are in docs/formats/snapshot.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError
from monolith.tables.schema import TableSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.tables.schema import SegmentSchema
    from monolith.tables.snapshot.manifest import SnapshotManifest


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
