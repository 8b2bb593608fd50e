"""The rows of an export: their tables as JSON, and a copy of a snapshot for serving, in bounded memory."""

from __future__ import annotations

import secrets
import time
from contextlib import closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tables import NUM_BUCKETS, Schema, TableSchema, compressors, serving_tables, shared_buckets
from monolith.tables.local import LocalStore
from monolith.tables.snapshot import (
    SnapshotManifest,
    TableEntry,
    bucket_ranges,
    open_destination,
    open_source,
    remove_written,
    restore,
    write_file,
    writing_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from monolith.tables import Compressor, TableConfig
    from monolith.tables.snapshot import FileEntry, SnapshotPath

_COMPRESSORS: dict[str, type[Compressor]] = {
    kind.kind: kind
    for kind in (compressors.Bf16, compressors.FixedR8, compressors.Fp16, compressors.Fp32, compressors.OneBit)
}


def describe_tables(schema: Schema, configs: Mapping[str, TableConfig], *, skip_zero: bool) -> dict[str, Any]:
    """Returns table -> description that a reader needs for its serving rows."""
    described = {}
    for table in schema.tables:
        config = configs[table.name]
        described[table.name] = {
            "schema": replace(table, serving=True).text,
            "compressors": [[each.compressor.kind, asdict(each.compressor)] for each in config.segments],
            "expire_days": config.expire_days,
            "slot_expire_days": {str(slot): days for slot, days in sorted(config.slot_expire_days.items())},
            "skip_zero": skip_zero,
        }
    return described


def schema_of(described: Mapping[str, Any], *, origin: str) -> Schema:
    """Returns the schema of the serving rows."""
    try:
        return Schema(tuple(TableSchema.parse(name, described[name]["schema"]) for name in sorted(described)))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataLossError(f"{origin}: not the description of tables: {error!r}") from error


def tables_of(described: Mapping[str, Any], *, origin: str) -> dict[str, TableConfig]:
    """Returns configs of serving tables for these rows."""
    made = serving_tables(schema_of(described, origin=origin))
    try:
        return {name: _table(config, described[name]) for name, config in made.items()}
    except (KeyError, TypeError, ValueError, AttributeError, InvalidArgumentError) as error:
        raise DataLossError(f"{origin}: not the description of tables: {error!r}") from error


def _table(config: TableConfig, described: Mapping[str, Any]) -> TableConfig:
    segments = [
        replace(segment, compressor=_COMPRESSORS[kind](**options))
        for segment, (kind, options) in zip(config.segments, described["compressors"], strict=True)
    ]
    return replace(
        config,
        segments=segments,
        expire_days=int(described["expire_days"]),
        slot_expire_days={int(slot): int(days) for slot, days in described["slot_expire_days"].items()},
        skip_zero=bool(described["skip_zero"]),
    )


_BYTES_AT_ONCE = 128 << 20


def copy_for_serving(
    sources: Sequence[str],
    target: SnapshotPath,
    tables: Mapping[str, TableConfig],
    *,
    least_files: int = 1,
    on_rows: Callable[[int], None] | None = None,
) -> SnapshotManifest:
    """Writes the rows of a snapshot in the form of serving tables; after an error the target is unchanged.

    `sources` are the folders of the snapshot: one, or those of its parts, which divide the buckets. `on_rows` is called
    with the number of rows written since the last call.
    """
    found = {source: _manifest_of(source) for source in sources}
    schema = LocalStore(tables).schema
    num_files = max(least_files, _num_files(list(found.values()), schema))
    snapshot_id = secrets.randbits(64)
    rows = dict.fromkeys(schema.names, 0)
    files: list[FileEntry] = []
    with closing(open_destination(target, 0)) as destination:
        try:
            with writing_folder(target) as folder:
                for begin, end in bucket_ranges(min(num_files, NUM_BUCKETS)):
                    with _loaded(tables, found, range(begin, end)).cut() as cut:
                        for table, count in cut.rows.items():
                            rows[table] += count
                        blocks = cut.blocks(range(begin, end), state=False)
                        files.append(write_file(folder, blocks, (begin, end), snapshot_id))
                    if on_rows is not None:
                        on_rows(files[-1].rows)
            manifest = _manifest(snapshot_id, _entries(schema, rows, list(found.values())), files, found.values())
            destination.publish(manifest)
        except BaseException:
            remove_written(target, files)
            raise
    return manifest


def _manifest(
    snapshot_id: int, tables: tuple[TableEntry, ...], files: Sequence[FileEntry], found: Collection[SnapshotManifest]
) -> SnapshotManifest:
    """Returns the manifest of the target, with the epoch and clocks of the sources."""
    clocks = [clock for each in found for clock in each.applied]
    return SnapshotManifest(
        snapshot_id=snapshot_id,
        generation=0,
        epoch=max(each.epoch for each in found),
        created=int(time.time()),
        state=False,
        tables=tables,
        files=tuple(files),
        applied=tuple(sorted(clocks, key=lambda clock: clock.buckets.start)),
        extra=None,
    )


def _manifest_of(source: str) -> SnapshotManifest:
    with closing(open_source(source)) as opened:
        return opened.manifest


def _num_files(found: Sequence[SnapshotManifest], schema: Schema) -> int:
    rows = {name: sum(each.rows.get(name, 0) for each in found) for name in schema.names}
    return 1 + schema.num_bytes(rows, state=False) // _BYTES_AT_ONCE


def _loaded(tables: Mapping[str, TableConfig], sources: Mapping[str, SnapshotManifest], buckets: range) -> LocalStore:
    store = LocalStore(tables)
    for source, manifest in sources.items():
        if shared := shared_buckets(manifest.buckets, buckets):
            restore(store, source, buckets=shared)
    return store


def _entries(schema: Schema, rows: Mapping[str, int], found: Sequence[SnapshotManifest]) -> tuple[TableEntry, ...]:
    newest = dict.fromkeys(schema.names, 0)
    for table in (table for manifest in found for table in manifest.tables):
        newest[table.name] = max(newest.get(table.name, 0), table.newest_time)
    return tuple(
        TableEntry(
            name=table.name,
            schema=table.text,
            digest=table.digest,
            rows=rows[table.name],
            newest_time=newest[table.name],
        )
        for table in schema.tables
    )
