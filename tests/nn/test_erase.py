"""`Embeddings.erase` and `num_rows_by_slot`: a user who wants to be forgotten, by the ids that the slot takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import monolith as ml
from contracts.engines import stores_of
from monolith.errors import InvalidArgumentError
from monolith.ids import pack_v2
from monolith.tables import HashTable, Segment, TableConfig, TableGroup
from monolith.tables.filters import ProbabilisticFilter

BATCH = {
    "user": torch.tensor([7, 8, -3]),
    "item": torch.tensor([7, 7, 2**60]),
    "seen": torch.tensor([9, 9, 9]),
    "alone": torch.tensor([7, -7, 7]),
    "raw": torch.tensor([7, 8, 9]),
    "packed": pack_v2(9, torch.tensor([7, 7, 5])),
}
ROWS = {"user": 3, "item": 3, "seen": 3, "alone": 2, "raw": 3, "packed": 2}


def model(**options: Any) -> ml.Embeddings:
    slots = {
        "user": ml.Slot(dim=2),
        "item": ml.Slot(dim=2),
        "seen": ml.Slot(shares="item"),
        "alone": ml.Slot(dim=2, id_layout="any"),
        "raw": ml.Slot(dim=2, id_layout="raw"),
        "packed": ml.Slot(dim=2, id_layout="v2", number=9),
    }
    emb = ml.Embeddings(slots, **options)
    step(emb)
    return emb


def step(emb: ml.Embeddings) -> None:
    emb(BATCH).concat().sum().backward()
    emb.step()


@pytest.mark.parametrize("name", ["local", "three servers here"])
def test_rows_are_counted_by_slot(name: str) -> None:
    with stores_of(name) as make:
        emb = model(store=make)
        assert emb.num_rows_by_slot() == ROWS
        emb.erase("user", [7, 8, -3])
        assert emb.num_rows_by_slot() == ROWS | {"user": 0}


@pytest.mark.parametrize(
    ("slot", "ids", "rows"),
    [
        ("user", [7], 1),
        ("user", torch.tensor([[7, -3], [1000, 7]]), 2),
        ("user", np.array([-3]), 1),
        ("user", 8, 1),
        ("user", [], 0),
        ("item", [2**60, 5], 1),
        ("seen", [9], 1),
        ("alone", [-7], 1),
        ("raw", [9], 1),
        ("packed", pack_v2(9, torch.tensor([7])), 1),
    ],
)
def test_rows_of_the_ids_go_and_no_others(slot: str, ids: Any, rows: int) -> None:
    emb = model()
    others = {name: emb.vectors(name) for name in ROWS if name != slot}
    assert emb.erase(slot, ids) == rows
    flat = torch.as_tensor(ids).to(torch.int64).reshape(-1)
    assert not emb.lookup(slot, flat).any()
    expected = ROWS | {slot: ROWS[slot] - rows}
    if slot in {"item", "seen"}:
        expected |= {"item": 3 - rows, "seen": 3 - rows}
    assert emb.num_rows_by_slot() == expected
    for name, (known, vectors) in others.items():
        if {name, slot} != {"item", "seen"}:
            assert emb.lookup(name, known).equal(vectors), name
    assert emb.erase(slot, ids) == 0


def test_an_erased_id_that_is_trained_again_begins_as_a_new_one() -> None:
    emb, fresh = model(), model()
    for _ in range(3):
        step(emb)
    emb.erase("user", [7])
    step(emb)
    assert emb.lookup("user", torch.tensor([7])).equal(fresh.lookup("user", torch.tensor([7])))
    assert not emb.lookup("user", torch.tensor([8])).equal(fresh.lookup("user", torch.tensor([8])))


def test_a_step_that_was_not_made_yet_finds_no_row() -> None:
    emb, fresh = model(), model()
    step(emb)
    emb(BATCH).concat().sum().backward()
    emb.erase("user", [7])
    emb.step()
    assert emb.lookup("user", torch.tensor([7])).equal(fresh.lookup("user", torch.tensor([7])))


def test_what_admission_has_counted_is_erased() -> None:
    emb = ml.Embeddings({"user": ml.Slot(dim=1, min_count=2)})
    ids = torch.arange(200)

    def train() -> int:
        emb({"user": ids}).concat().sum().backward()
        return emb.step().inserted

    assert (train(), train()) == (0, 0)
    assert emb.erase("user", ids[:100]) == 0
    assert (train(), train(), train()) == (100, 0, 100)  # those that were erased are counted from the beginning


def test_what_a_filter_that_draws_has_counted_is_erased() -> None:
    config = TableConfig([Segment(1)], min_count=3, admission=ProbabilisticFilter())
    ids, ones = np.arange(300), np.ones((300, 1), np.float32)
    first, second = HashTable(config), HashTable(config)
    admitted = first.apply_gradients(ids, ones).inserted
    assert 0 < admitted < 300
    second.apply_gradients(ids, ones)
    second.erase(ids)
    assert second.apply_gradients(ids, ones).inserted == admitted  # the draw of a first offer
    assert first.apply_gradients(ids, ones).inserted != admitted


@pytest.mark.parametrize(
    ("slot", "ids", "error", "said"),
    [
        ("usre", [7], InvalidArgumentError, "'usre' does not exist.*user"),
        ("user", ["ann"], TypeError, r"text_ids\('user', texts\)"),
        ("user", "ann", TypeError, "text_ids"),
        ("user", [1.5], TypeError, "'user'.*int64"),
        ("raw", [-1], InvalidArgumentError, "'raw'.*-1"),
        ("packed", [7], InvalidArgumentError, "'packed'.*7"),
    ],
)
def test_ids_that_the_slot_does_not_take_are_refused(slot: str, ids: Any, error: type[Exception], said: str) -> None:
    emb = model()
    with pytest.raises(error, match=said):
        emb.erase(slot, ids)
    assert emb.num_rows_by_slot() == ROWS


def test_a_table_rejects_an_id_that_is_not_one_of_its_keys() -> None:
    emb = model()
    group = TableGroup.of_store(emb.store)
    table = emb.placed["user"].table
    with pytest.raises(InvalidArgumentError, match=r"7 is no key of this table.*slot 0.*Embeddings.erase\(slot, ids\)"):
        group.erase({table: [7]})
    with pytest.raises(InvalidArgumentError, match="-3"):
        group[table].erase([-3])
    assert group.erase({table: pack_v2(9, torch.tensor([7, 8])), emb.placed["alone"].table: [7, 8]}) == 2
    with pytest.raises(InvalidArgumentError, match="usre"):
        group.erase({"usre": [7]})
