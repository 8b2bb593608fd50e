"""One block of rows as bytes, and the view of its parts. Byte grammar: docs/formats/row_block.md.

Blocks are made and loaded by the core; Python reads them for tests, tools and `Store.assign`. The view copies nothing.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING

import numpy as np

from monolith.errors import DataLossError

if TYPE_CHECKING:
    from numpy.typing import NDArray


MAGIC = 0x424C524D
VERSION = 1
HEADER = struct.Struct("<IHBBQIIIIQQ")
TRAILER = struct.Struct("<II")


class BlockKind(enum.IntEnum):
    """What a block holds. Persisted: the values never change."""

    FULL = 1
    SERVING = 2
    TOMBSTONE = 3
    FILTER = 4


def padded(size: int) -> int:
    """Returns `size` rounded up to 8 bytes."""
    return (size + 7) & ~7


def block_bytes(data: bytes | memoryview, offset: int = 0) -> int:
    """Returns the size of the block whose header is at `offset`; the header is not checked."""
    fields = HEADER.unpack_from(data, offset)
    count, payload_size = fields[7], fields[9]
    return int(HEADER.size + 8 * count + padded(4 * count) + padded(payload_size) + TRAILER.size)


class RowBlock:
    """An immutable row block: rows, tombstones or the admission filter of one table and one bucket.

    Only the sizes are checked here; the checksum is checked by `Store.load`.

    Raises:
        DataLossError: the bytes are not one row block.
    """

    __slots__ = ("bucket", "count", "data", "digest", "epoch", "kind", "payload_size", "row_bytes", "table")

    def __init__(self, data: bytes) -> None:
        self.data = data
        if len(data) < HEADER.size + TRAILER.size:
            raise DataLossError(f"row block: at least {HEADER.size + TRAILER.size} bytes expected, got {len(data)}")
        fields = HEADER.unpack_from(data)
        magic, version, kind, zero, self.digest, self.table, self.bucket, self.count, self.row_bytes = fields[:9]
        self.payload_size, self.epoch = fields[9:]
        if magic != MAGIC or version != VERSION or zero != 0:
            raise DataLossError(
                f"row block: magic {MAGIC:#x} and version {VERSION} expected, got {magic:#x}, {version}"
            )
        if kind not in BlockKind.__members__.values():
            raise DataLossError(f"row block: kind 1 to 4 expected, got {kind}")
        self.kind = BlockKind(kind)
        expected = HEADER.size + 8 * self.count + padded(4 * self.count) + padded(self.payload_size) + TRAILER.size
        if expected != len(data):
            raise DataLossError(f"row block: {expected} bytes expected for {self.count} rows, got {len(data)}")

    @property
    def keys(self) -> NDArray[np.int64]:
        """int64 [count]: the ids."""
        return np.frombuffer(self.data, np.int64, self.count, HEADER.size)

    @property
    def times(self) -> NDArray[np.uint32]:
        """uint32 [count]: Unix seconds of the last update; of a tombstone, the epoch of the removal."""
        return np.frombuffer(self.data, np.uint32, self.count, HEADER.size + 8 * self.count)

    @property
    def payload(self) -> NDArray[np.uint8]:
        """uint8 [count, row_bytes]; of a filter, its bytes [payload_size]."""
        offset = HEADER.size + 8 * self.count + padded(4 * self.count)
        flat = np.frombuffer(self.data, np.uint8, self.payload_size, offset)
        return flat if self.kind is BlockKind.FILTER else flat.reshape(self.count, self.row_bytes)

    def weights(self, dim: int) -> NDArray[np.float32]:
        """Returns float32 [count, dim]: a copy of the weights of a full block."""
        return np.ascontiguousarray(self.payload[:, : 4 * dim]).view(np.float32)

    def state(self, dim: int) -> NDArray[np.uint8]:
        """Returns uint8 [count, state bytes]: the optimizer state of a full block."""
        return self.payload[:, 4 * dim :]

    def __repr__(self) -> str:
        return f"RowBlock({self.kind.name}, table={self.table}, bucket={self.bucket}, count={self.count})"
