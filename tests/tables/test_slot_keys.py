"""Bucket and key of a row are exactly its slot and id, also where slots of any int64 share a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import _core
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tables import LocalStore, Segment, TableConfig, TableGroup
from monolith.tables.formats.entry_dump import export_group_entry_dump, import_group_entry_dump
from monolith.tables.formats.parquet import export_parquet
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.schema import Schema, TableSchema
from monolith.tables.slot_keys import buckets_of_plan, ids_of_keys
from monolith.testing.reference_format import build_block, name_of_slot_id

WIDE_SLOTS = (3, 7, 32767)
ANY_INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), -1, 0, 2**48 - 1, 2**48, 2**63 - 1])


def pack(slot: int, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys and buckets, by the core."""
    ids = np.array(numbers, np.int64)
    zero = np.zeros(1, np.int64)
    wide = np.array([1 << 63 | WIDE_SLOTS.index(slot) << 54], np.uint64).view(np.int64)
    keys, buckets, bad = _core.pack_slot_ids(
        [ids.ctypes.data], np.array([len(ids)]), zero, np.array([slot << 48]), zero, wide
    )
    assert bad == -1
    return keys, buckets


@given(slot=st.sampled_from(WIDE_SLOTS), numbers=st.lists(ANY_INT64, min_size=1))
def test_slot_and_id_are_recovered_from_bucket_and_key(slot: int, numbers: list[int]) -> None:
    keys, buckets = pack(slot, numbers)
    found = ids_of_keys(keys, buckets, WIDE_SLOTS)
    assert found.ids.tolist() == numbers
    assert found.slots.tolist() == [slot] * len(numbers)


@given(slot=st.sampled_from(WIDE_SLOTS), number=ANY_INT64)
def test_the_core_makes_the_keys_that_the_page_describes(slot: int, number: int) -> None:
    keys, buckets = pack(slot, [number])
    assert (buckets.item(), keys.item()) == name_of_slot_id(slot, number, WIDE_SLOTS)


@given(left=st.tuples(st.sampled_from(WIDE_SLOTS), ANY_INT64), right=st.tuples(st.sampled_from(WIDE_SLOTS), ANY_INT64))
def test_two_ids_never_share_a_row(left: tuple[int, int], right: tuple[int, int]) -> None:
    (keys, buckets), (others, other_buckets) = (pack(slot, [number]) for slot, number in (left, right))
    same = (keys.item(), buckets.item()) == (others.item(), other_buckets.item())
    assert same == (left == right)


def test_a_key_of_an_unknown_slot_is_distinguished() -> None:
    keys, buckets = pack(32767, [-1])
    assert ids_of_keys(keys, buckets, WIDE_SLOTS[:1]).slots.tolist() == [-1]


def test_the_buckets_of_a_plan_are_those_of_its_cells() -> None:
    group = LocalStore({"a": TableConfig([Segment(1)]), "b": TableConfig([Segment(1)])}).native.core
    plan = group.plan(np.arange(50), np.array([0, 20, 50]), True)
    assert buckets_of_plan(plan.splits, 2).tolist() == _core.bucket_of(plan.unique_ids).tolist()
    assert not plan.has_buckets


# The schema text


def test_the_schema_names_the_wide_slots_as_the_core_does() -> None:
    store = LocalStore({"t": TableConfig([Segment(2)], wide_slots=[7, 3])})
    (table,) = store.schema.tables
    assert table.wide_slots == (3, 7)
    assert (
        store.native.core.schema(0) == table.text == "monolith-table/1;serving=0;wide_slots=3,7;segment=2,sgd,0,fp32,8"
    )
    assert Schema.parse(store.schema.text) == store.schema
    plain = LocalStore({"t": TableConfig([Segment(2)])}).schema
    assert plain.differences(store.schema) == ["table 't': expected slots [] to take any int64, got [3, 7]"]


@pytest.mark.parametrize("numbers", ["", "7,3", "3,3", "-1", "x", "32768"])
def test_wide_slots_that_cannot_be_are_refused(numbers: str) -> None:
    with pytest.raises(DataLossError, match="wide_slots must be ascending numbers of slots"):
        TableSchema.parse("t", f"monolith-table/1;serving=0;wide_slots={numbers};segment=2,sgd,0,fp32,8")


def test_a_table_takes_512_wide_slots() -> None:
    assert len(TableConfig([Segment(1)], wide_slots=range(512)).wide_slots) == 512
    with pytest.raises(InvalidArgumentError, match="at most 512 fit one table, got 513"):
        TableConfig([Segment(1)], wide_slots=range(513))
    with pytest.raises(InvalidArgumentError, match=r"wide_slots: slot must be in \[0, 32768\), got 32768"):
        TableConfig([Segment(1)], wide_slots=[32768])


# Faces and files


def shared_group(*, numbers: tuple[int, ...] = (-1, 5, 2**63 - 1)) -> TableGroup:
    """A group whose only table has a row of each id in slots 3 and 7, which start at the id's place."""
    store = LocalStore({"t": TableConfig([Segment(1)], wide_slots=WIDE_SLOTS)})
    for slot in (3, 7):
        for place, number in enumerate(numbers):
            row = name_of_slot_id(slot, number, WIDE_SLOTS)
            rows = [(row.key, 9, np.float32(slot * 10 + place).tobytes())]
            digest = store.schema.tables[0].digest
            store.assign(
                build_block(BlockKind.FULL, digest=digest, table=0, bucket=row.bucket, epoch=0, rows=rows), add=False
            )
    return TableGroup.of_store(store)


@pytest.mark.parametrize(
    "call",
    ["lookup", "contains", "lookup_rows", "erase"],
)
def test_a_face_refuses_keys_that_it_could_not_find(call: str) -> None:
    table = shared_group()["t"]
    key = name_of_slot_id(3, -1, WIDE_SLOTS).key
    told = "5 is no key of this table: .*" if call == "erase" else f"slots share it, and {key} .*"
    with pytest.raises(InvalidArgumentError, match=rf"table 't': {told} Embeddings"):
        getattr(table, call)(np.array([5, key]))
    assert table.lookup(np.array([7 << 48 | 5])).tolist() == [[71.0]]


def test_parquet_has_slots_and_the_ids_of_users(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export_parquet(shared_group()["t"], tmp_path / "rows.parquet") == 6
    rows = parquet.read_table(tmp_path / "rows.parquet").to_pydict()
    found = sorted(zip(rows["slot"], rows["id"], (weights[0] for weights in rows["weights"]), strict=True))
    numbers = (-1, 5, 2**63 - 1)
    assert found == [(slot, number, slot * 10 + place) for slot in (3, 7) for place, number in enumerate(numbers)]


def test_an_entry_dump_holds_narrow_ids_and_refuses_others_by_the_table_s_name(tmp_path: Path) -> None:
    narrow = shared_group(numbers=(1, 2))
    export_group_entry_dump(narrow, tmp_path / "dump")
    target = shared_group(numbers=())
    assert import_group_entry_dump(target, tmp_path / "dump").rows == 4
    assert target["t"].lookup(np.array([7 << 48 | 2])).tolist() == [[71.0]]
    with pytest.raises(InvalidArgumentError, match=r"table 't': slots share it, and an EntryDump message can hold"):
        export_group_entry_dump(shared_group(), tmp_path / "wide")
    plain = TableGroup({"t": TableConfig([Segment(1)])})
    plain["t"].assign(np.array([-5]), np.ones((1, 1), np.float32), time=1)
    export_group_entry_dump(plain, tmp_path / "plain")
    with pytest.raises(InvalidArgumentError, match=r"table 't': slots share it"):
        import_group_entry_dump(target, tmp_path / "plain")


def test_plain_tables_take_negative_ids_as_ever() -> None:
    group = TableGroup({"t": TableConfig([Segment(1)])})
    group["t"].assign(np.array([-5, 2**63 - 1]), np.array([[1.0], [2.0]], np.float32), time=1)
    assert group["t"].lookup(np.array([2**63 - 1, -5])).tolist() == [[2.0], [1.0]]
