"""Checkpoints of the original's occurrence filters: written as it wrote them, read whole, damage is found."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import crc32c
import numpy as np
import pytest

from monolith import _core
from monolith.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from monolith.tables.formats.filter_dump import FilterDump, read_filter_dump, write_filter_dump


def varint(number: int) -> bytes:
    low = number & 0x7F
    return bytes([low]) if number < 0x80 else bytes([low | 0x80]) + varint(number >> 7)


def field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def framed(payload: bytes) -> bytes:
    def masked(data: bytes) -> bytes:
        sum_ = crc32c.crc32c(data)
        return struct.pack("<I", ((sum_ >> 15 | sum_ << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def counted(capacity: int = 300, split_num: int = 5) -> FilterDump:
    """A filter in which something was counted, with numbers that all differ."""
    dump = FilterDump.empty(capacity, split_num)
    draw = np.random.default_rng(0)
    splits = tuple(
        replace(
            split,
            failure_count=10 + number,
            num_elements=20 + number,
            cells=draw.integers(0, 1 << 16, len(split.cells)).astype(np.uint16),
        )
        for number, split in enumerate(dump.splits)
    )
    return replace(dump, head=3, head_increment=8, failure_count=1234, splits=splits)


def assert_equal(left: FilterDump, right: FilterDump) -> None:
    for one, other in zip(left.splits, right.splits, strict=True):
        np.testing.assert_array_equal(one.cells, other.cells)
        assert replace(one, cells=other.cells) == other
    assert replace(left, splits=right.splits) == right


def test_a_small_filter_has_the_sizes_of_the_published_example() -> None:
    dump = FilterDump.empty(capacity=300, split_num=100)
    assert (dump.split_num, dump.max_forward_step, dump.max_backward_step, dump.max_step) == (100, 2, 98, 16)
    assert {(split.total_size, len(split.cells), split.fill_rate) for split in dump.splits} == {(3, 67, 1.2)}


def test_the_default_is_the_upstream_default() -> None:
    dump = FilterDump.empty()
    assert (dump.split_num, dump.splits[0].total_size) == (7, 60_000_000)
    assert (dump.head, dump.head_increment, dump.failure_count) == (0, 0, 0)
    assert {(split.failure_count, split.num_elements) for split in dump.splits} == {(0, 0)}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    dump = counted(capacity=50_000)
    files = write_filter_dump(tmp_path / "assets/hash_filter_0", dump)
    assert [file.name for file in files] == [f"hash_filter_0-0000{number}-of-00005" for number in range(5)]
    assert sorted(files[0].parent.iterdir()) == files
    assert_equal(read_filter_dump(tmp_path / "assets/hash_filter_0"), dump)


def test_the_bytes_are_those_of_the_messages(tmp_path: Path) -> None:
    cells = np.zeros(90 + 64, np.uint16)
    cells[[0, 153]] = 0xABC3, 0x0011
    dump = FilterDump.empty(capacity=300, split_num=5)
    dump = replace(dump, head=2, head_increment=7, failure_count=5)
    first = replace(dump.splits[0], cells=cells, num_elements=2, failure_count=9)
    files = write_filter_dump(tmp_path / "f", replace(dump, splits=(first, *dump.splits[1:])))
    sliding = field(1, 5) + field(2, 2) + field(3, 3) + field(4, 16) + field(5, 2) + field(6, 7) + field(7, 5)
    meta = field(1, 9) + field(2, 90) + field(3, 2) + b"\x21" + struct.pack("<d", 1.2)
    meta += b"\x2a" + varint(len(sliding)) + sliding
    data = field(1, 0) + b"".join(field(2, int(cell)) for cell in cells)
    assert files[0].read_bytes() == framed(meta) + framed(data)


def test_ten_thousand_cells_stand_in_a_record(tmp_path: Path) -> None:
    files = write_filter_dump(tmp_path / "f", FilterDump.empty(capacity=66_613, split_num=5))
    records = _core.read_records(str(files[0]), snappy=False)
    total = 19_983 + 64
    assert [record.count(b"\x10\x00") for record in records[1:]] == [10_000, 10_000, total - 20_000]
    assert all(record.startswith(field(1, 10_000 * number)) for number, record in enumerate(records[1:]))


def test_packed_cells_are_read_too(tmp_path: Path) -> None:
    dump = FilterDump.empty(capacity=300, split_num=5)
    files = write_filter_dump(tmp_path / "f", dump)
    meta, _ = _core.read_records(str(files[0]), snappy=False)
    packed = varint(7) * 154
    files[0].write_bytes(framed(meta) + framed(field(1, 0) + b"\x12" + varint(len(packed)) + packed))
    assert read_filter_dump(tmp_path / "f").splits[0].cells.tolist() == [7] * 154


@pytest.mark.parametrize("name", ["split_num", "max_forward_step", "max_backward_step", "max_step"])
def test_a_filter_of_another_shape_is_rejected_with_the_upstream_message(tmp_path: Path, name: str) -> None:
    dump = counted()
    write_filter_dump(tmp_path / "f", dump)
    live = replace(dump)
    object.__setattr__(live, name, 77)
    text = rf"^{name}: {getattr(live, name)} does't match with : \d+ read from hash filter checkpoint file\.$"
    with pytest.raises(ResourceExhaustedError, match=text):
        read_filter_dump(tmp_path / "f", live=live)
    assert_equal(read_filter_dump(tmp_path / "f", live=FilterDump.empty(900, 5)), dump)


def test_every_byte_that_flips_and_every_byte_that_is_missing_is_noticed(tmp_path: Path) -> None:
    files = write_filter_dump(tmp_path / "f", counted())
    whole = files[1].read_bytes()
    for at in range(0, len(whole), 7):
        files[1].write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises((DataLossError, FailedPreconditionError)):
            read_filter_dump(tmp_path / "f")
        files[1].write_bytes(whole[:at])
        with pytest.raises(DataLossError, match="f-00001-of-00005"):
            read_filter_dump(tmp_path / "f")


META, SLIDING = field(2, 1) + field(3, 0), field(1, 5) + field(2, 2) + field(3, 3) + field(4, 16)
GOOD_META = META + b"\x2a" + varint(len(SLIDING)) + SLIDING
GOOD_DATA = field(1, 0) + field(2, 7) * 65


@pytest.mark.parametrize(
    ("records", "error", "text"),
    [
        ([b"\xff"], FailedPreconditionError, "Unable to parse data. Data might be corrupted"),
        ([GOOD_META, b"\x0a"], FailedPreconditionError, "Unable to parse data. Data might be corrupted"),
        ([META, GOOD_DATA], DataLossError, "no sliding_hash_filter_meta"),
        ([], DataLossError, "no record"),
        ([GOOD_META], DataLossError, "65 cells expected, got 0"),
        ([GOOD_META, field(1, 0) + field(2, 7) * 64], DataLossError, "65 cells expected, got 64"),
        ([GOOD_META, GOOD_DATA, field(1, 65) + field(2, 7)], DataLossError, "65 cells expected, got 66"),
        ([GOOD_META, field(1, 1) + field(2, 7) * 65], DataLossError, "offset 0 expected, got 1"),
        ([GOOD_META, field(1, 0) + field(2, 1 << 16) * 65], DataLossError, "cells of 16 bits expected, got 65536"),
        ([GOOD_META.replace(field(1, 5), field(1, 6), 1), GOOD_DATA], InvalidArgumentError, "6 splits .* 5 files"),
        (
            [GOOD_META.replace(field(2, 2), field(2, 1), 1), GOOD_DATA],
            DataLossError,
            "describes another filter than f-00000-of-00005",
        ),
    ],
)
def test_records_that_make_no_filter_are_refused_with_the_file(
    tmp_path: Path, records: list[bytes], error: type[Exception], text: str
) -> None:
    for number in range(5):
        good = b"".join(map(framed, [GOOD_META, GOOD_DATA]))
        (tmp_path / f"f-0000{number}-of-00005").write_bytes(good)
    assert read_filter_dump(tmp_path / "f").splits[3].cells.tolist() == [7] * 65
    (tmp_path / "f-00001-of-00005").write_bytes(b"".join(map(framed, records)))
    with pytest.raises(error, match=text) as raised:
        read_filter_dump(tmp_path / "f")
    assert "f-00001-of-00005" in str(raised.value) or error is InvalidArgumentError


def test_an_incomplete_set_is_rejected(tmp_path: Path) -> None:
    files = write_filter_dump(tmp_path / "f", counted())
    files[2].unlink()
    with pytest.raises(InvalidArgumentError, match="Shard 2 doesn't show up"):
        read_filter_dump(tmp_path / "f")


def test_a_dump_does_not_mix_with_an_earlier_one_of_another_number_of_splits(tmp_path: Path) -> None:
    files = write_filter_dump(tmp_path / "f", counted())
    with pytest.raises(AlreadyExistsError, match=r"f-00000-of-00005: belongs to an earlier dump of 00005 shards"):
        write_filter_dump(tmp_path / "f", counted(split_num=6))
    assert sorted(tmp_path.iterdir()) == files


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "f-00004-of-00005").mkdir()
    with pytest.raises(Exception, match="f-00004-of-00005"):
        write_filter_dump(tmp_path / "f", counted())
    assert [path.name for path in tmp_path.iterdir()] == ["f-00004-of-00005"]


@pytest.mark.parametrize(("capacity", "split_num"), [(0, 7), (300, 4), (300, 1001)])
def test_a_filter_that_cannot_be_is_refused(capacity: int, split_num: int) -> None:
    with pytest.raises(InvalidArgumentError, match="must be"):
        FilterDump.empty(capacity, split_num)


def test_the_smallest_and_the_largest_filter_can_be() -> None:
    assert FilterDump.empty(1, 5).splits[0].total_size == FilterDump.empty(300, 5).splits[0].total_size == 90
    assert FilterDump.empty(1, 8).splits[0].total_size == 50  # a seventh of 300 is 42, and a fifth more than that
    assert len(FilterDump.empty(300, 1000).splits) == 1000


def test_cells_that_do_not_fit_their_split_are_refused(tmp_path: Path) -> None:
    dump = counted()
    short = replace(dump.splits[0], cells=dump.splits[0].cells[:-1])
    with pytest.raises(InvalidArgumentError, match="154 cells expected, got 153"):
        write_filter_dump(tmp_path / "f", replace(dump, splits=(short, *dump.splits[1:])))
    with pytest.raises(InvalidArgumentError, match="5 splits expected, got 4"):
        write_filter_dump(tmp_path / "f", replace(dump, splits=dump.splits[1:]))
    assert list(tmp_path.iterdir()) == []
