"""From dictionaries to row blocks and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from monolith.errors import DataLossError, FailedPreconditionError
from monolith.tables.row_block import TRAILER, BlockKind, RowBlock
from monolith.testing.reference_format import bucket_of_id, build_block, build_filter_block, crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.testing.reference_rows import DictionaryTable


def write_blocks(tables: Sequence[DictionaryTable], *, since_epoch: int, epoch: int, state: bool) -> Iterator[RowBlock]:
    """Filters first, then bucket by bucket and table by table the tombstones before the rows."""
    kind = BlockKind.FULL if state else BlockKind.SERVING
    parts: dict[tuple[int, int, bool], list[tuple[int, int, bytes]]] = {}  # by bucket, table, then tombstones first
    for number, table in enumerate(tables):
        for key, removed in table.tombstones.items():
            if removed > since_epoch:
                parts.setdefault((bucket_of_id(key), number, False), []).append((key, removed, b""))
        for key, row in table.rows.items():
            if row.epoch > since_epoch:
                item = (key, row.time, row.payload(state=state))
                parts.setdefault((bucket_of_id(key), number, True), []).append(item)
    for bucket in sorted({bucket_of_id(key) for table in tables for key in table.counts}):
        yield build_filter_block(bucket=bucket, epoch=epoch, payload=_filter_bytes(tables, bucket))
    for bucket, number, is_rows in sorted(parts):
        yield build_block(
            kind if is_rows else BlockKind.TOMBSTONE,
            digest=tables[number].schema.digest,
            table=number,
            bucket=bucket,
            epoch=epoch,
            rows=parts[bucket, number, is_rows],
        )


def check_block(tables: Sequence[DictionaryTable], block: RowBlock) -> None:
    """Refuses damaged blocks and those of other tables."""
    body, trailer = block.data[: -TRAILER.size], block.data[-TRAILER.size :]
    if TRAILER.unpack(trailer) != (crc32c(body), 0):
        raise DataLossError(f"{block!r}: checksum does not match")
    if block.kind is BlockKind.FILTER:
        return
    if block.table >= len(tables) or tables[block.table].schema.digest != block.digest:
        raise FailedPreconditionError(f"{block!r}: schema does not match this store")


def load_block(tables: Sequence[DictionaryTable], block: RowBlock, epoch: int) -> None:
    """Takes over what the block holds."""
    if block.kind is BlockKind.FILTER:
        for number, counts in enumerate(json.loads(block.payload.tobytes())):
            table = tables[number]
            table.counts = {key: seen for key, seen in table.counts.items() if bucket_of_id(key) != block.bucket}
            table.counts |= {int(key): seen for key, seen in counts.items()}
        return
    table = tables[block.table]
    for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True):
        if block.kind is BlockKind.TOMBSTONE:
            table.rows.pop(key, None)
            table.tombstones[key] = epoch
        else:
            table.take_payload(key, time, payload.tobytes(), epoch)


def clear_buckets(tables: Sequence[DictionaryTable], buckets: range) -> None:
    """Forgets rows, tombstones and counts of some buckets."""
    for table in tables:
        table.rows = {key: row for key, row in table.rows.items() if bucket_of_id(key) not in buckets}
        table.tombstones = {key: at for key, at in table.tombstones.items() if bucket_of_id(key) not in buckets}
        table.counts = {key: seen for key, seen in table.counts.items() if bucket_of_id(key) not in buckets}


def _filter_bytes(tables: Sequence[DictionaryTable], bucket: int) -> bytes:
    counts = [{key: seen for key, seen in table.counts.items() if bucket_of_id(key) == bucket} for table in tables]
    return json.dumps(counts).encode()
