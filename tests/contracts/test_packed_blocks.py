"""Blocks in one buffer are worth what they are worth one by one, out of every engine and into it."""

from __future__ import annotations

import pytest

from contracts.engines import StoreFactory
from contracts.one_worker import DAY, ONE_TABLE, Worker, blocks_of, keys, rows_of
from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from monolith.tables import PackedBlocks, Segment, Store, TableConfig
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.history import ALL_BUCKETS

COUNTING = {"user": TableConfig([Segment(2)], min_count=2, admission=SlidingHashFilter(capacity=1000))}


def contents(store: Store) -> list[bytes]:
    """All that a store holds, but for the epochs at which blocks are made, and their checksums."""
    return sorted(block.data[:40] + block.data[48:-8] for block in blocks_of(store))


def test_packed_changes_are_the_changes_byte_by_byte(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train(list(range(300)), time=0)
    reader = store.open_reader("log")
    assert (bytes(reader.packed_changes(state=True).data), reader.packed_changes(state=True).count) == (b"", 0)
    worker.train(list(range(200, 500)), time=5 * DAY)
    worker.session.evict(now=5 * DAY)  # ids below 200 become tombstones
    reader.next_mark()
    for buckets, state in ((ALL_BUCKETS, True), (range(17, 900), False), (range(300, 301), True), (range(5, 5), True)):
        one_by_one = [block.data for block in reader.changes(state=state, buckets=buckets)]
        packed = reader.packed_changes(state=state, buckets=buckets)
        assert bytes(packed.data) == b"".join(one_by_one)
        assert [block.data for block in packed] == one_by_one
        assert packed.count == len(one_by_one)
    assert keys(reader.packed_changes(state=True)) == (list(range(200, 500)), list(range(200)))


def test_packed_changes_refuse_what_changes_refuse(new_store: StoreFactory) -> None:
    reader = new_store(ONE_TABLE).open_reader("log")
    with pytest.raises(InvalidArgumentError, match="buckets must be"):
        reader.packed_changes(state=True, buckets=range(-1, 3))
    reader.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        reader.packed_changes(state=True)


def test_a_copy_that_loads_packed_changes_is_the_copy_that_loads_blocks(new_store: StoreFactory) -> None:
    store, packed_copy, copy = (new_store(ONE_TABLE) for _ in range(3))
    worker, reader = Worker(store), store.open_reader("log")
    for round_, ids in enumerate((range(400), range(350, 500), range(10))):
        worker.train(list(ids), time=round_ * DAY)
        worker.session.evict(now=round_ * DAY + 1)  # what was not trained
        reached = reader.next_mark()
        expected = copy.load(reader.changes(state=True), buckets=ALL_BUCKETS, replace=False)
        report = packed_copy.load(reader.packed_changes(state=True), buckets=ALL_BUCKETS, replace=False)
        assert report == expected
        assert report.rows == len(ids)
        reader.advance(reached)
    assert contents(packed_copy) == contents(copy)
    assert keys(blocks_of(packed_copy))[0] == list(range(10))


def test_packed_blocks_outside_the_buckets_are_counted_and_ignored(new_store: StoreFactory) -> None:
    source, target = new_store(ONE_TABLE), new_store(ONE_TABLE)
    Worker(source).train(list(range(300)))
    packed, inside = PackedBlocks.of(blocks_of(source)), range(100, 500)
    report = target.load(packed, buckets=inside, replace=False)
    assert report.rows == sum(block.count for block in packed if block.bucket in inside) > 0
    assert report.ignored == 300 - report.rows
    assert {block.bucket for block in blocks_of(target)} <= set(inside)


def test_packed_blocks_replace_rows_and_counts(new_store: StoreFactory) -> None:
    source, target = new_store(COUNTING), new_store(COUNTING)
    worker = Worker(source)
    worker.train([1, 2])
    worker.train([1, 2])
    other = Worker(target)
    other.train([7, 7, 7])
    other.train([7])
    assert keys(blocks_of(target))[0] == [7]
    packed = PackedBlocks.of(blocks_of(source))
    report = target.load(packed, buckets=ALL_BUCKETS, replace=True)
    assert (report.rows, report.filters) == (0, packed.count)
    Worker(target).train([1, 5])  # 1 alone had been there twice
    assert keys(blocks_of(target))[0] == [1]


def test_bytes_that_are_damaged_or_of_another_schema_change_nothing(new_store: StoreFactory) -> None:
    source, other, target = new_store(ONE_TABLE), new_store({"user": TableConfig([Segment(3)])}), new_store(ONE_TABLE)
    Worker(source).train(list(range(40)))
    Worker(other).train(list(range(40)))
    Worker(target).train([1000], 2.0)
    blocks = [block.data for block in blocks_of(source)]
    good = b"".join(blocks)
    damaged = [
        good[:-1],
        good + b"\0",
        good[:-20] + bytes([good[-20] ^ 1]) + good[-19:],  # in the payload of the last block
        b"".join(blocks[:-1]) + b"\xff" * 4 + blocks[-1][4:],  # no magic
        good + blocks[0][: len(blocks[0]) // 2],
    ]
    for number, data in enumerate(damaged):
        with pytest.raises(DataLossError):
            target.load(PackedBlocks(data), buckets=ALL_BUCKETS, replace=number % 2 == 0)
    with pytest.raises(FailedPreconditionError, match="schema"):
        target.load(PackedBlocks.of(blocks_of(other)), buckets=ALL_BUCKETS, replace=True)
    assert keys(blocks_of(target))[0] == [1000]
    assert rows_of(target, [1000]) == [[-2.0, -2.0]]
