"""Row blocks end to end in one buffer, and what becomes of bytes that are none."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monolith.errors import DataLossError
from monolith.tables import LocalStore, PackedBlocks, Segment, TableConfig, TableGroup
from monolith.tables.formats.row_block import HEADER, MAGIC
from monolith.tables.history import ALL_BUCKETS

CONFIGS = {"user": TableConfig([Segment(2)])}


def packed_rows(count: int = 50) -> PackedBlocks:
    store = LocalStore(CONFIGS)
    reader = store.open_reader("log")
    TableGroup.of_store(store)["user"].assign(np.arange(count), np.ones((count, 2), np.float32))
    return reader.packed_changes(state=True)


GOOD = bytes(packed_rows().data)


def header_of(*, count: int, payload_bytes: int, kind: int = 1, row_bytes: int = 8) -> bytes:
    return HEADER.pack(MAGIC, 1, kind, 0, 0, 0, 0, count, row_bytes, payload_bytes, 0)


def test_any_buffer_can_hold_the_blocks_at_any_alignment() -> None:
    shifted = memoryview(b"\0" + GOOD + b"\0\0")[1:-2]
    for data in (GOOD, bytearray(GOOD), memoryview(GOOD), shifted):
        packed, store = PackedBlocks(data), LocalStore(CONFIGS)
        assert store.load(packed, buckets=ALL_BUCKETS, replace=True).rows == 50
        assert b"".join(block.data for block in packed) == GOOD
        assert packed.count == len({block.bucket for block in packed}) > 1
        assert repr(packed) == f"PackedBlocks({len(GOOD)} bytes)"


def test_what_shows_no_bytes_is_refused() -> None:
    with pytest.raises((BufferError, TypeError)):
        LocalStore(CONFIGS).load(PackedBlocks("text"), buckets=ALL_BUCKETS, replace=False)  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        LocalStore(CONFIGS).load(PackedBlocks(memoryview(GOOD)[::2]), buckets=ALL_BUCKETS, replace=False)


def test_an_error_names_the_byte_of_the_buffer() -> None:
    first = len(next(iter(PackedBlocks(GOOD))).data)
    second_damaged = GOOD[: first + 50] + bytes([GOOD[first + 50] ^ 1]) + GOOD[first + 51 :]
    with pytest.raises(DataLossError, match=r"packed row blocks: offset \d+: checksum") as caught:
        LocalStore(CONFIGS).load(PackedBlocks(second_damaged), buckets=ALL_BUCKETS, replace=False)
    assert int(str(caught.value).split("offset ")[1].split(":")[0]) > first
    with pytest.raises(DataLossError, match=rf"packed row blocks: offset {first}: a row block takes at least 56 bytes"):
        _ = PackedBlocks(GOOD[: first + 10]).count


@pytest.mark.parametrize(
    "header",
    [
        header_of(count=2**30, payload_bytes=2**33),
        header_of(count=2**32 - 1, payload_bytes=8 * (2**32 - 1)),
        header_of(count=0, payload_bytes=2**64 - 8, kind=4, row_bytes=1),
        header_of(count=0, payload_bytes=2**64 - 1, kind=4, row_bytes=1),
        header_of(count=1, payload_bytes=2**62, row_bytes=2**32 - 1),
    ],
    ids=["rows", "most rows", "a filter", "a filter that wraps around", "a row"],
)
def test_sizes_beyond_the_buffer_are_refused_before_anything_is_taken(header: bytes) -> None:
    data = GOOD + header + b"\0" * 64
    for use in (lambda packed: packed.count, list):
        with pytest.raises(DataLossError, match=r"packed row blocks: offset \d+: (block of|row count|payload is)"):
            use(PackedBlocks(data))
    store = LocalStore(CONFIGS)
    with pytest.raises(DataLossError, match="packed row blocks"):
        store.load(PackedBlocks(data), buckets=ALL_BUCKETS, replace=True)
    assert store.stats().rows == 0


@given(
    cut=st.integers(0, len(GOOD)),
    changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(1, 255)), max_size=3),
)
@example(cut=len(GOOD), changes=[])
def test_bytes_that_were_changed_are_rejected_or_intact(cut: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD[:cut])
    for place, change in changes:
        if place < cut:
            data[place] ^= change
    store = LocalStore(CONFIGS)
    try:
        report = store.load(PackedBlocks(data), buckets=ALL_BUCKETS, replace=False)
    except DataLossError:
        assert store.stats().rows == 0
    else:  # the end of a block, and no change that was not taken back
        assert GOOD.startswith(bytes(data))
        assert store.stats().rows == report.rows


def test_a_header_of_the_format_is_what_these_tests_assume() -> None:
    """Or the hostile headers above would be refused for another reason."""
    fields = struct.unpack("<IHBBQIIIIQQ", GOOD[: HEADER.size])
    assert fields[:4] == (MAGIC, 1, 1, 0)
    assert fields[8] == 8
