"""Builds row blocks from arrays, for rows of another source. Byte grammar: docs/formats/row_block.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith import _core
from monolith.tables.formats.row_block import HEADER, MAGIC, TRAILER, VERSION, BlockKind, RowBlock, padded

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["filter_block", "full_block", "rekeyed_block"]


def full_block(
    *,
    digest: int,
    table: int,
    bucket: int,
    keys: NDArray[np.int64],
    time: int,
    payload: NDArray[np.uint8],
) -> RowBlock:
    """Returns a block of full rows of one table and one bucket.

    Args:
        digest: Of the table's schema.
        table: Its number.
        bucket: Of all the keys.
        keys: [n].
        time: Unix seconds of the last update of all rows.
        payload: [n, row bytes]: weights, then optimizer state.
    """
    count, row_bytes = payload.shape
    header = HEADER.pack(MAGIC, VERSION, BlockKind.FULL, 0, digest, table, bucket, count, row_bytes, payload.size, 0)
    return _written(header, keys, np.full(count, time, np.uint32), payload)


def rekeyed_block(block: RowBlock, *, digest: int, taken: NDArray[np.bool_], keys: NDArray[np.int64]) -> RowBlock:
    """Returns some rows or tombstones of a block under other keys of the same bucket, for a table with this digest.

    Args:
        block: Not a filter.
        digest: Of the schema of the table that they are for.
        taken: [count]: which rows.
        keys: Of those, in their order.
    """
    payload = block.payload[taken]
    header = HEADER.pack(
        MAGIC,
        VERSION,
        block.kind,
        0,
        digest,
        block.table,
        block.bucket,
        len(keys),
        block.row_bytes,
        payload.size,
        block.epoch,
    )
    return _written(header, keys, block.times[taken], payload)


def filter_block(block: RowBlock, payload: bytes) -> RowBlock:
    """Returns a block of an admission filter with other bytes."""
    fields = list(HEADER.unpack_from(block.data))
    fields[9] = len(payload)
    empty = np.empty(0, np.int64)
    return _written(HEADER.pack(*fields), empty, empty.astype(np.uint32), np.frombuffer(payload, np.uint8))


def _written(header: bytes, keys: NDArray[np.int64], times: NDArray[np.uint32], payload: NDArray[np.uint8]) -> RowBlock:
    count = len(keys)
    data = bytearray(HEADER.size + 8 * count + padded(4 * count) + padded(payload.size) + TRAILER.size)
    parts = np.frombuffer(data, np.uint8)
    at = HEADER.size
    parts[:at] = np.frombuffer(header, np.uint8)
    parts[at : at + 8 * count] = np.ascontiguousarray(keys).view(np.uint8)
    at += 8 * count
    parts[at : at + 4 * count] = np.ascontiguousarray(times).view(np.uint8)
    at += padded(4 * count)
    parts[at : at + payload.size] = payload.reshape(-1)
    body = len(data) - TRAILER.size
    TRAILER.pack_into(data, body, _core.crc32c_extend(0, parts[:body]), 0)
    return RowBlock(bytes(data))
