"""Conversion of dictionaries to row blocks and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from monolith.errors import DataLossError, FailedPreconditionError
from monolith.tables.formats.row_block import TRAILER, BlockKind, RowBlock
from monolith.tables.history import NUM_BUCKETS
from monolith.testing.reference_format import RowName, build_block, build_filter_block, crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.testing.reference_rows import DictionaryTable


def changed_blocks(tables: Sequence[DictionaryTable], *, since: int, epoch: int, state: bool) -> Iterator[RowBlock]:
    """Yields everything changed after an epoch, by bucket and table, tombstones before rows; 0 is before everything."""
    kind = BlockKind.FULL if state else BlockKind.SERVING
    parts: dict[tuple[int, int, bool], list[tuple[int, int, bytes]]] = {}  # by bucket, table, then tombstones first
    for number, table in enumerate(tables):
        for name, removed in table.contents.tombstones.items():
            if removed > since:
                parts.setdefault((name.bucket, number, False), []).append((name.key, removed, b""))
        for name, row in table.rows.items():
            if row.epoch > since:
                item = (name.key, row.time, table.payload(row, state=state))
                parts.setdefault((name.bucket, number, True), []).append(item)
    for bucket, number, is_rows in sorted(parts):
        yield build_block(
            kind if is_rows else BlockKind.TOMBSTONE,
            digest=tables[number].schema.digest,
            table=number,
            bucket=bucket,
            epoch=epoch,
            rows=parts[bucket, number, is_rows],
        )


def all_blocks(tables: Sequence[DictionaryTable], *, epoch: int, state: bool) -> list[RowBlock]:
    """Returns all blocks by bucket: admission counts, then by table tombstones and rows."""
    filters = [
        build_filter_block(bucket=bucket, epoch=epoch, payload=_filter_bytes(tables, bucket))
        for bucket in {name.bucket for table in tables for name in table.contents.counts}
    ]
    blocks = [*filters, *changed_blocks(tables, since=0, epoch=epoch, state=state)]
    return sorted(blocks, key=lambda block: block.bucket)  # stable: keeps the order inside a bucket


def check_block(tables: Sequence[DictionaryTable], block: RowBlock, *, table: int | None = None) -> None:
    """Raises for damaged blocks and for other tables; `table` is the target of its rows, if not the table it names."""
    body, trailer = block.data[: -TRAILER.size], block.data[-TRAILER.size :]
    if TRAILER.unpack(trailer) != (crc32c(body), 0):
        raise DataLossError(f"{block!r}: checksum does not match")
    if block.kind is BlockKind.FILTER:
        return
    number = block.table if table is None else table
    if number >= len(tables) or tables[number].schema.digest != block.digest:
        raise FailedPreconditionError(f"{block!r}: schema does not match this store")
    if block.kind is BlockKind.SERVING:
        raise FailedPreconditionError(f"{block!r}: ReferenceStore takes full rows, got serving rows")


def load_block(table: DictionaryTable, block: RowBlock, *, epoch: int, keeps_removals: bool) -> None:
    """Loads rows or tombstones."""
    for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True):
        name = RowName(block.bucket, key)
        if block.kind is BlockKind.FULL:
            table.take_payload(name, time, payload.tobytes(), epoch)
            continue
        table.rows.pop(name, None)
        if keeps_removals:
            table.contents.tombstones[name] = epoch


def load_filter(tables: Sequence[DictionaryTable], block: RowBlock) -> None:
    """Loads the admission counts of a bucket."""
    given = json.loads(block.payload.tobytes())
    for table, counts in zip(tables, given, strict=True):
        kept = {name: seen for name, seen in table.contents.counts.items() if name.bucket != block.bucket}
        table.contents.counts = kept | {RowName(block.bucket, int(key)): seen for key, seen in counts.items()}


def clear_buckets(tables: Sequence[DictionaryTable], buckets: range) -> None:
    """Clears rows, tombstones and counts of some buckets; with all buckets the newest time, too."""
    for table in tables:
        contents = table.contents
        for values in (contents.rows, contents.tombstones, contents.counts):
            for name in [name for name in values if name.bucket in buckets]:
                del values[name]
        if len(buckets) == NUM_BUCKETS:
            contents.newest_time = 0


def _filter_bytes(tables: Sequence[DictionaryTable], bucket: int) -> bytes:
    counts = [
        {name.key: seen for name, seen in table.contents.counts.items() if name.bucket == bucket} for table in tables
    ]
    return json.dumps(counts).encode()
