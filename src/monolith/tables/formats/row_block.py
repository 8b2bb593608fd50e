"""One block of rows as bytes, and the view of its parts. Byte grammar: docs/formats/row_block.md.

Blocks are made and loaded by the core. Python reads them for tests, tools and `Store.assign`, builds them for rows of
another source, and packs them end to end, as a delta log keeps them. Views copy nothing.
"""

from __future__ import annotations

import enum
import struct
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from monolith import _core
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


def full_block(
    *, digest: int, table: int, bucket: int, keys: NDArray[np.int64], time: int, payload: NDArray[np.uint8]
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


class PackedBlocks:
    """Row blocks (docs/formats/row_block.md) end to end, without a Python object for each.

    `ChangeReader.packed_changes` makes it and `Store.load` takes it, like any iterable of blocks; a store in this
    process does either in one call. The constructor checks nothing: headers are checked when blocks are accessed, and
    `Store.load` checks all blocks, checksums included, before it changes a row.

    >>> from monolith.tables import LocalStore, Segment, TableConfig, TableGroup
    >>> store, copy = (LocalStore({"user": TableConfig([Segment(1)])}) for _ in range(2))
    >>> reader = store.open_reader("log")
    >>> TableGroup.of_store(store)["user"].assign([3, 5], [[0.5], [1.5]])
    >>> packed = reader.packed_changes(state=True)
    >>> copy.load(packed, buckets=range(1024), replace=False).rows
    2
    >>> packed.count, sorted(int(key) for block in packed for key in block.keys)
    (2, [3, 5])
    """

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = data
        """The bytes, which belong to the caller and must not change."""

    @classmethod
    def of(cls, blocks: Iterable[RowBlock]) -> Self:
        """Concatenates blocks."""
        return cls(b"".join(block.data for block in blocks))

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        """Where each block begins, and where the last one ends."""
        return _core.packed_block_offsets(self.data)

    @property
    def count(self) -> int:
        """Number of blocks.

        Raises:
            DataLossError: the bytes are not row blocks end to end; names the offset.
        """
        return len(self._offsets) - 1

    @property
    def num_bytes(self) -> int:
        """Number of bytes of all blocks."""
        return memoryview(self.data).nbytes

    def pieces(self, at_most: int) -> Iterator[memoryview]:
        """Yields the bytes in pieces of complete blocks, at most `at_most` bytes each, or one block that is longer.

        Raises:
            DataLossError: as `count`, where it does not fit one piece.
        """
        view = memoryview(self.data).cast("B")
        if len(view) <= at_most:
            return iter([view] if len(view) else [])
        ends = self._offsets[1:]
        begins = [0]
        while begins[-1] < len(view):
            last = int(np.searchsorted(ends, begins[-1] + at_most, side="right")) - 1
            following = int(np.searchsorted(ends, begins[-1], side="right"))
            begins.append(int(ends[max(last, following)]))
        return (view[begin:end] for begin, end in pairwise(begins))

    def __iter__(self) -> Iterator[RowBlock]:
        """Yields a copy of each block.

        Raises:
            DataLossError: as `count`.
        """
        offsets = self._offsets.tolist()
        view = memoryview(self.data)
        return (RowBlock(bytes(view[begin:end])) for begin, end in pairwise(offsets))

    def __repr__(self) -> str:
        return f"PackedBlocks({self.num_bytes} bytes)"
