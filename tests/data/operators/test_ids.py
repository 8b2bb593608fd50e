"""Ids that operators make, against plain integers of any size."""

from __future__ import annotations

from typing import Any

import cityhash
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.operators.sample_rows import INT64, Row, batch_of, few, rows, rows_of
from monolith.data import Batch
from monolith.data.operators import (
    CrossIds,
    HashInts,
    HashTexts,
    MapIds,
    SwitchSlot,
    city_hash64,
    cross_rows,
    folded_product,
    id_mask,
    sequence_mask,
)
from monolith.ids import pack_v2, slot_v2
from monolith.tensors import Ragged

MASK_48 = (1 << 48) - 1
SLOTS = st.sampled_from([0, 1, 100, 32767])


def signed(number: int) -> int:
    number %= 1 << 64
    return number - (1 << 64) if number >= 1 << 63 else number


def folded(left: int, right: int) -> int:
    product = left * right % (1 << 128)
    return product >> 64 ^ product & ((1 << 64) - 1)


@given(st.lists(st.tuples(INT64, INT64), max_size=20))
def test_products_of_128_bits_are_folded(pairs: list[tuple[int, int]]) -> None:
    left, right = (torch.tensor([pair[side] for pair in pairs], dtype=torch.int64) for side in (0, 1))
    assert folded_product(left, right).tolist() == [signed(folded(*pair)) for pair in pairs]


@given(st.lists(INT64, max_size=20))
def test_hashes_are_those_of_an_independent_cityhash(numbers: list[int]) -> None:
    expected = [signed(cityhash.CityHash64(number.to_bytes(8, "little", signed=True))) for number in numbers]
    assert city_hash64(torch.tensor(numbers, dtype=torch.int64)).tolist() == expected


@few
@given(rows(), SLOTS)
def test_crosses_are_all_pairs_left_first(samples: list[Row], slot: int) -> None:
    made = CrossIds("user", "item", slot=slot)(batch_of(samples))["user-item"]
    assert isinstance(made, Ragged)
    expected = [
        [slot << 48 | folded(left, right) & MASK_48 for left in row["user"] for right in row["item"]] for row in samples
    ]
    assert made.to_lists() == expected


def test_the_vectors_of_the_specification() -> None:
    left, right = Ragged.from_lists([[pack_v2(5, 7)]]), Ragged.from_lists([[pack_v2(6, 9)]])
    assert cross_rows(left, right, 100).to_lists() == [[pack_v2(100, 0x001E0000003F)]]
    moved = SwitchSlot({"user": 100})(Batch({"user": Ragged.from_lists([[pack_v2(7, 0x1234)]])}, num_rows=1))["user"]
    assert isinstance(moved, Ragged)
    assert moved.to_lists() == [[pack_v2(100, 0x1234)]]


@few
@given(rows(), SLOTS)
def test_slots_switch_in_place_and_as_copies(samples: list[Row], slot: int) -> None:
    batch = batch_of(samples)
    expected = [[slot << 48 | number & MASK_48 for number in row["user"]] for row in samples]
    moved = SwitchSlot({"user": slot})(batch)
    copied = SwitchSlot({"user": slot}, copy_suffix="x")(batch)
    assert [row["user"] for row in rows_of(moved)] == expected
    assert [row["user_x"] for row in rows_of(copied)] == expected
    assert [row["user"] for row in rows_of(copied)] == [row["user"] for row in samples]


def test_slots_of_nested_rows_switch() -> None:
    batch = Batch({"lists": Ragged.from_lists([[[pack_v2(7, 1)], []], []])}, num_rows=2)
    moved = SwitchSlot({"lists": 8})(batch)["lists"]
    assert isinstance(moved, Ragged)
    assert moved.to_lists() == [[[pack_v2(8, 1)], []], []]


@few
@given(rows(), SLOTS)
def test_numbers_become_ids(samples: list[Row], slot: int) -> None:
    def id_of(number: int) -> int:
        return int(slot << 48 | cityhash.CityHash64(number.to_bytes(8, "little", signed=True)) & MASK_48)

    batch = batch_of(samples)
    made = rows_of(HashInts("uid", slot=slot, output="uid_id")(HashInts("user", slot=slot)(batch)))
    assert [row["uid_id"] for row in made] == [[id_of(row["uid"])] for row in samples]
    assert [row["user"] for row in made] == [[id_of(number) for number in row["user"]] for row in samples]


def test_texts_become_ids_by_all_their_bytes() -> None:
    texts = [b"", b"a", b"12345678", b"123456789", b"12345678\0", b"a", "straße".encode()]
    batch = Batch({"city": texts}, num_rows=len(texts))
    made = HashTexts("city", slot=9)(batch)["city"]
    assert isinstance(made, Ragged)
    assert made.lengths().tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert slot_v2(made.flat_values).tolist() == [9] * 6
    ids = made.flat_values.tolist()
    assert ids[0] == ids[4]
    assert len(set(ids)) == 5
    again = HashTexts("city", slot=9)(Batch({"city": texts[::-1]}, num_rows=len(texts)))["city"]
    assert isinstance(again, Ragged)
    assert again.flat_values.tolist() == ids[::-1]


def test_hashes_of_many_texts_do_not_fall_together() -> None:
    texts = [f"item-{number}".encode() for number in range(50_000)]
    made = HashTexts("name", slot=1)(Batch({"name": texts}, num_rows=len(texts)))["name"]
    assert isinstance(made, Ragged)
    assert len(set(made.flat_values.tolist())) == len(texts)


@few
@given(rows(), st.dictionaries(st.integers(-3, 6), INT64, max_size=5), INT64)
def test_mapped_integers(samples: list[Row], mapping: dict[int, int], default: int) -> None:
    batch = batch_of(samples)
    made = rows_of(
        MapIds("uid", mapping=mapping, default=default)(MapIds("user", mapping=mapping, default=default)(batch))
    )
    assert [row["uid"] for row in made] == [mapping.get(row["uid"], default) for row in samples]
    assert [row["user"] for row in made] == [
        [mapping.get(number, default) for number in row["user"]] for row in samples
    ]


@few
@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=5), st.integers(0, 3), st.integers(0, 5))
def test_masks(lists: list[list[int]], wanted: int, length: int) -> None:
    ragged = Ragged.from_lists(lists)
    assert id_mask(ragged, wanted).tolist() == [float(wanted in row) for row in lists]
    expected = [[float(place < len(row)) for place in range(length)] for row in lists]
    assert sequence_mask(ragged, length).tolist() == expected


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SwitchSlot({"user": 32768}), "slot must be from 0 to 32767, got 32768"),
        (lambda: CrossIds("a", "b", slot=-1), "CrossIds: slot must be from 0 to 32767, got -1"),
        (lambda: HashInts("a", slot=1 << 20), "HashInts: slot must be"),
    ],
)
def test_wrong_slots_are_refused(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    "operator",
    [SwitchSlot({"city": 1}), HashInts("city", slot=1), MapIds("city", mapping={}), HashTexts("uid", slot=1)],
)
def test_columns_of_another_kind_are_named(operator: Any) -> None:
    batch = Batch({"city": [b"x"], "uid": torch.arange(1)}, num_rows=1)
    with pytest.raises(TypeError, match=f"{type(operator).__name__}: column '(city|uid)' must be"):
        operator(batch)
