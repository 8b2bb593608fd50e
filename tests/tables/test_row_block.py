"""Row blocks: the core's writer, the plain Python writer and the view agree on the bytes."""

from __future__ import annotations

import numpy as np
import pytest

from monolith import _core
from monolith.errors import DataLossError
from monolith.tables import BlockKind, HashTable, LocalStore, RowBlock, Segment, TableConfig, TableGroup
from monolith.tables.row_optimizers import Adagrad
from monolith.testing.reference_format import bucket_of_id, build_block, build_filter_block, crc32c

CONFIG = TableConfig([Segment(3, optimizer=Adagrad())], name="user")


def rows_by_bucket(count: int) -> dict[int, list[tuple[int, int, bytes]]]:
    rng = np.random.default_rng(count)
    rows: dict[int, list[tuple[int, int, bytes]]] = {}
    for key in rng.integers(-(2**63), 2**63 - 1, count).tolist():
        payload = rng.standard_normal(6).astype(np.float32).tobytes()
        rows.setdefault(bucket_of_id(key), []).append((key, int(rng.integers(0, 2**32)), payload))
    return rows


def python_blocks(digest: int, count: int = 30) -> list[RowBlock]:
    return [
        build_block(BlockKind.FULL, digest=digest, table=0, bucket=bucket, epoch=1, rows=rows)
        for bucket, rows in rows_by_bucket(count).items()
    ]


def test_the_bucket_of_an_id_is_the_same_in_python() -> None:
    ids = np.array([-(2**63), -1, 0, 1, 2**63 - 1, *np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 200)])
    assert _core.bucket_of(ids).tolist() == [bucket_of_id(key) for key in ids.tolist()]


def test_the_core_reads_what_python_writes_and_writes_the_same_bytes() -> None:
    store = LocalStore({"user": CONFIG})
    blocks = python_blocks(store.schema.tables[0].digest)
    assert store.load(blocks, buckets=range(1024), replace=False).rows == 30
    written = {block.bucket: block for block in TableGroup.of_store(store).changes()}
    for block in blocks:
        ours = written[block.bucket]
        assert ours.data[:40] == block.data[:40]
        assert ours.data[48:-8] == block.data[48:-8]  # all but the epoch and the checksum over it
        assert crc32c(ours.data[:-8]) == int.from_bytes(ours.data[-8:-4], "little")


def test_a_view_shows_the_parts_of_a_block() -> None:
    table = HashTable(CONFIG)
    table.apply_gradients([5], [[1.0, 2.0, 3.0]], time=77)
    (block,) = table.changes()
    assert (block.kind, block.table, block.bucket, block.count) == (BlockKind.FULL, 0, bucket_of_id(5), 1)
    assert block.digest == table.native.core.digest(0)
    assert block.keys.tolist() == [5]
    assert block.times.tolist() == [77]
    assert block.row_bytes == 24
    assert block.weights(3).tolist() == table.lookup([5]).tolist()
    assert block.state(3).view(np.float32).shape == (1, 3)
    filter_block = build_filter_block(bucket=3, epoch=0, payload=b"abc")
    assert filter_block.payload.tobytes() == b"abc"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:40], "at least 56 bytes expected, got 40"),
        (lambda data: b"X" + data[1:], "magic 0x424c524d and version 1 expected"),
        (lambda data: data[:4] + b"\x02" + data[5:], "version 1 expected"),
        (lambda data: data[:6] + b"\x09" + data[7:], "kind 1 to 4 expected, got 9"),
        (lambda data: data + b"12345678", "bytes expected for 1 rows"),
        (lambda data: data[:-8], "bytes expected for 1 rows"),
    ],
)
def test_bytes_that_are_no_block_are_refused(change: object, message: str) -> None:
    block = build_block(BlockKind.FULL, digest=1, table=0, bucket=bucket_of_id(1), epoch=0, rows=[(1, 2, b"12345678")])
    with pytest.raises(DataLossError, match=message):
        RowBlock(change(block.data))  # type: ignore[operator]


def test_checking_blocks_writes_nothing() -> None:
    table = HashTable(CONFIG)
    blocks = [block.data for block in python_blocks(table.native.core.digest(0))]
    table.native.core.check(blocks, (0, 1024), None)
    assert len(table) == 0
    damaged = bytearray(blocks[7])
    damaged[-20] ^= 4
    with pytest.raises(DataLossError, match="checksum"):
        table.native.core.check([*blocks, bytes(damaged)], (0, 1024), None)
