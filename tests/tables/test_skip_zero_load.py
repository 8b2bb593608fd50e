"""A serving table with `skip_zero` has no rows that read as zeros anyway, however rows come to it."""

from __future__ import annotations

import pytest

from monolith.tables import LocalStore, PackedBlocks, Segment, TableConfig, TableGroup, compressors
from monolith.tables.history import ALL_BUCKETS

COMPRESSORS = [compressors.Fp32(), compressors.Fp16(), compressors.FixedR8(1.0)]


def store_of(compressor: compressors.Compressor, *, serving: bool, skip_zero: bool = False) -> LocalStore:
    return LocalStore({"item": TableConfig([Segment(3, compressor=compressor)], serving=serving, skip_zero=skip_zero)})


def rows_of(store: LocalStore) -> dict[int, list[float]]:
    group = TableGroup.of_store(store)["item"]
    with store.cut() as cut:
        keys = [int(key) for block in cut.blocks(ALL_BUCKETS, state=False) for key in block.keys if block.row_bytes]
    return {key: group.lookup([key])[0].tolist() for key in sorted(keys)}


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda each: each.kind)
@pytest.mark.parametrize("state", [True, False], ids=["full", "serving"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "blocks"])
def test_rows_of_zeros_are_skipped_and_removed(compressor: compressors.Compressor, state: bool, packed: bool) -> None:
    trained = store_of(compressor, serving=False)
    reader = trained.open_reader("log")
    served, plain = (store_of(compressor, serving=True, skip_zero=skip) for skip in (True, False))
    group = TableGroup.of_store(trained)["item"]

    def follow() -> None:
        reached = reader.next_mark()
        for target in (served, plain):
            found = PackedBlocks.of(reader.changes(state=state))
            target.load(found if packed else list(found), buckets=ALL_BUCKETS, replace=False)
        reader.advance(reached)

    ids = list(range(200))
    group.assign(ids, [[0.0, 0.0, 0.0] if each % 3 == 0 else [0.5, 0.25, 0.0] for each in ids])
    follow()
    assert list(rows_of(served)) == [each for each in ids if each % 3]
    assert list(rows_of(plain)) == ids
    group.assign([1, 2, 3], [[0.0] * 3, [0.75] * 3, [0.25] * 3])  # one goes, one changes, one comes
    follow()
    assert list(rows_of(served)) == sorted({each for each in ids if each % 3} - {1} | {3})
    assert [TableGroup.of_store(each)["item"].lookup(ids).tolist() for each in (served, plain)] == [
        TableGroup.of_store(plain)["item"].lookup(ids).tolist()
    ] * 2


def test_what_a_follower_removes_is_reported_to_its_own_follower() -> None:
    served = store_of(compressors.Fp16(), serving=True, skip_zero=True)
    trained = store_of(compressors.Fp16(), serving=False)
    group = TableGroup.of_store(trained)["item"]
    for value in (1.0, 0.0):
        changes = trained.open_reader("log")
        reader = served.open_reader("next")
        group.assign([7], [[value] * 3])
        served.load(changes.packed_changes(state=False), buckets=ALL_BUCKETS, replace=False)
        kinds = [block.kind.name for block in reader.changes(state=False)]
        assert kinds == (["SERVING"] if value else ["TOMBSTONE"])
