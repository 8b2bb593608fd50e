"""Payloads are the changes of a store in bounded pieces of whole blocks, read in as few calls as that allows."""

from __future__ import annotations

import itertools

import pytest

from monolith.deltalog.publish.local_publisher import RowPayloads
from monolith.tables import LocalStore, PackedBlocks, Segment, TableConfig, TableGroup
from monolith.tables.history import ALL_BUCKETS, ChangeReader


class Counting:
    """A reader that notes what it is asked for."""

    def __init__(self, reader: ChangeReader) -> None:
        self._reader = reader
        self.asked: list[range] = []

    def packed_changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> PackedBlocks:
        self.asked.append(buckets)
        return self._reader.packed_changes(state=state, buckets=buckets)


@pytest.fixture
def changed() -> tuple[LocalStore, Counting]:
    store = LocalStore({"item": TableConfig([Segment(2)])})
    reader = store.open_reader("log")
    assign(store, 3000)
    return store, Counting(reader)


def assign(store: LocalStore, count: int) -> None:
    TableGroup.of_store(store)["item"].assign(list(range(count)), [[1.0, 2.0]] * count)


def read(payloads: RowPayloads, reader: Counting) -> list[bytes]:
    return list(payloads.of(reader))  # type: ignore[arg-type]  # what it needs of a reader


@pytest.mark.parametrize("at_most", [1, 300, 10_000, 1 << 30])
def test_pieces_are_complete_blocks_of_bounded_size(changed: tuple[LocalStore, Counting], at_most: int) -> None:
    packed = changed[1].packed_changes(state=False)
    pieces = [bytes(piece) for piece in packed.pieces(at_most)]
    assert b"".join(pieces) == bytes(packed.data)
    for piece in pieces:
        assert len(piece) <= at_most or PackedBlocks(piece).count == 1
    together = [len(a) + len(b) for a, b in itertools.pairwise(pieces)]
    assert all(size > at_most for size in together)  # no piece could have been longer
    assert list(PackedBlocks(b"").pieces(5)) == []


def test_payloads_are_the_changes_in_pieces_of_about_a_size(changed: tuple[LocalStore, Counting]) -> None:
    _, reader = changed
    whole = bytes(reader.packed_changes(state=False).data)
    for buckets in (ALL_BUCKETS, range(100, 300)):
        found = read(RowPayloads(buckets, at_most=5000), reader)
        assert len(found) >= 4
        assert max(map(len, found)) < 2 * 5000
        expected = [block.data for block in PackedBlocks(whole) if block.bucket in buckets]
        assert sorted(block.data for each in found for block in PackedBlocks(each)) == sorted(expected)


def test_a_round_takes_one_call_where_little_changes_and_one_bucket_after_a_failure(
    changed: tuple[LocalStore, Counting],
) -> None:
    _, reader = changed
    payloads = RowPayloads(ALL_BUCKETS, at_most=1 << 30)
    (first,) = read(payloads, reader)
    assert [len(each) for each in reader.asked[:4]] == [1, 2, 4, 8]
    reader.asked.clear()
    assert read(payloads, reader) == [first]
    assert reader.asked == [ALL_BUCKETS]
    broken = RowPayloads(ALL_BUCKETS, at_most=2000)
    read(broken, reader)
    reader.asked.clear()
    next(broken.of(reader))  # type: ignore[arg-type]  # and the log is away
    reader.asked.clear()
    read(broken, reader)
    assert reader.asked[0] == range(1)


def test_where_everything_has_changed_no_call_reads_much_more_than_a_record() -> None:
    store = LocalStore({"item": TableConfig([Segment(2)])})
    reader = Counting(store.open_reader("log"))
    assign(store, 40_000)
    payloads = RowPayloads(ALL_BUCKETS, at_most=20_000)
    for _ in range(2):
        reader.asked.clear()
        read(payloads, reader)
        sizes = [reader.packed_changes(state=False, buckets=each).num_bytes for each in list(reader.asked)]
        assert max(sizes) < 3 * 20_000
