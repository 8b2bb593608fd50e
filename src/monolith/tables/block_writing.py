"""Row blocks made of arrays, for rows that come from elsewhere. Byte grammar: docs/formats/row_block.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith import _core
from monolith.tables.row_block import HEADER, MAGIC, TRAILER, VERSION, BlockKind, RowBlock, padded

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["full_block", "moved_block"]


def full_block(
    *,
    digest: int,
    table: int,
    bucket: int,
    keys: NDArray[np.int64],
    time: int,
    payload: NDArray[np.uint8],
) -> RowBlock:
    """Full rows of one table and one bucket.

    Args:
        digest: Of the table's schema.
        table: Its number.
        bucket: Of all the keys.
        keys: [n].
        time: Unix seconds of the last update of all rows.
        payload: [n, row bytes]: weights, then optimizer state.
    """
    times = np.full(len(keys), time, np.uint32)
    return _packed(BlockKind.FULL, (digest, table, bucket), keys, times, payload)


def moved_block(
    block: RowBlock, *, digest: int, table: int, chosen: NDArray[np.bool_], keys: NDArray[np.int64]
) -> RowBlock:
    """Rows or tombstones of a block under other keys, for a table of another number or schema.

    Args:
        block: Of which bucket, times and payload stay.
        digest: Of the schema of the table it is for.
        table: Its number.
        chosen: [n] which entries stay.
        keys: [n] the new ones.
    """
    to = (digest, table, block.bucket)
    return _packed(block.kind, to, keys[chosen], block.times[chosen], block.payload[chosen], epoch=block.epoch)


def _packed(
    kind: BlockKind,
    place: tuple[int, int, int],
    keys: NDArray[np.int64],
    times: NDArray[np.uint32],
    payload: NDArray[np.uint8],
    *,
    epoch: int = 0,
) -> RowBlock:
    """A block of the table and bucket of `place`: digest, table, bucket."""
    count, row_bytes = payload.shape
    data = bytearray(HEADER.size + 8 * count + padded(4 * count) + padded(payload.size) + TRAILER.size)
    HEADER.pack_into(data, 0, MAGIC, VERSION, kind, 0, *place, count, row_bytes, payload.size, epoch)
    parts = np.frombuffer(data, np.uint8)
    at = HEADER.size
    parts[at : at + 8 * count] = np.ascontiguousarray(keys).view(np.uint8)
    at += 8 * count
    parts[at : at + 4 * count] = np.ascontiguousarray(times).view(np.uint8)
    at += padded(4 * count)
    parts[at : at + payload.size] = payload.reshape(-1)
    body = len(data) - TRAILER.size
    TRAILER.pack_into(data, body, _core.crc32c_extend(0, parts[:body]), 0)
    return RowBlock(bytes(data))
