"""Row blocks made of arrays, for rows that come from elsewhere. Byte grammar: docs/formats/row_block.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith import _core
from monolith.tables.row_block import HEADER, MAGIC, TRAILER, VERSION, BlockKind, RowBlock, padded

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["full_block"]


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
    count, row_bytes = payload.shape
    data = bytearray(HEADER.size + 8 * count + padded(4 * count) + padded(payload.size) + TRAILER.size)
    HEADER.pack_into(
        data, 0, MAGIC, VERSION, BlockKind.FULL, 0, digest, table, bucket, count, row_bytes, payload.size, 0
    )
    parts = np.frombuffer(data, np.uint8)
    at = HEADER.size
    parts[at : at + 8 * count] = keys.view(np.uint8)
    at += 8 * count
    parts[at : at + 4 * count] = np.full(count, time, np.uint32).view(np.uint8)
    at += padded(4 * count)
    parts[at : at + payload.size] = payload.reshape(-1)
    body = len(data) - TRAILER.size
    TRAILER.pack_into(data, body, _core.crc32c_extend(0, parts[:body]), 0)
    return RowBlock(bytes(data))
