"""Rows from elsewhere become rows of a slot: the weights given, fresh state, the time given, and nothing else moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import monolith as ml
from contracts.engines import stores_of
from monolith.errors import InvalidArgumentError
from monolith.nn import row_assignment
from monolith.tables import LocalStore, TableGroup
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS
from nn.conftest import StoreFactory

IDS = torch.tensor([3, 2**40, 0])
VECTORS = torch.tensor([[1.0, -2.0], [0.25, 8.0], [3.0, 0.5]])


def make(store: StoreFactory | None = None, **options: Any) -> ml.Embeddings:
    slots = {"item": ml.Slot(2, **options), "user": ml.Slot(2)}
    return ml.Embeddings(
        slots, ml.row_optimizers.Adagrad(learning_rate=0.01, initial_accumulator_value=0.5), store=store
    )


def train(emb: ml.Embeddings, ids: torch.Tensor, *, time: int = 5000) -> None:
    emb({"item": ids, "user": ids}, time=time).concat().square().sum().backward()
    emb.step()


def contents(emb: ml.Embeddings) -> dict[int, tuple[bytes, int]]:
    """Key -> payload and time."""
    with emb.cut() as cut:
        blocks = [block for block in cut.blocks(ALL_BUCKETS, state=True) if block.kind is BlockKind.FULL]
    return {
        int(key): (bytes(payload), int(time))
        for block in blocks
        for key, payload, time in zip(block.keys, block.payload, block.times, strict=True)
    }


def test_weights_are_those_given_and_state_is_that_of_a_new_row(make_store: StoreFactory) -> None:
    emb = make(make_store)
    assert emb.assign("item", IDS, VECTORS, time=5000) == 3
    assert torch.equal(emb.lookup("item", IDS).cpu(), VECTORS)
    assert emb.num_rows == 3
    state = np.full(2, 0.5, np.float32).tobytes()
    assert all(payload.endswith(state) and time == 5000 for payload, time in contents(emb).values())


def test_a_row_that_was_trained_gets_fresh_state_and_others_stay(make_store: StoreFactory) -> None:
    emb = make(make_store)
    train(emb, torch.tensor([3, 4]))
    others = contents(emb)
    emb.assign("item", torch.tensor([3]), torch.tensor([[7.0, 7.0]]), time=6000)
    fresh = make(make_store)
    fresh.assign("item", torch.tensor([3]), torch.tensor([[7.0, 7.0]]), time=6000)
    ((key, row),) = contents(fresh).items()
    assert contents(emb) == others | {key: row}


def test_assigned_rows_learn_as_if_they_had_begun_there() -> None:
    emb = make()
    emb.assign("item", torch.tensor([3]), torch.tensor([[1.0, 1.0]]))
    x = emb({"item": torch.tensor([3]), "user": torch.tensor([3])})
    x["item"].sum().backward()
    emb.step()
    step = 0.01 / (0.5 + 1) ** 0.5
    assert emb.lookup("item", torch.tensor([3]))[0].tolist() == pytest.approx([1 - step, 1 - step], rel=1e-6)


def test_assigned_rows_bypass_admission() -> None:
    emb = make(min_count=15)
    emb.assign("item", IDS, VECTORS)
    assert torch.equal(emb.lookup("item", IDS), VECTORS)


@pytest.mark.parametrize("held", [pytest.param(1, marks=pytest.mark.slow), 2], ids=lambda rows: f"{rows}-rows-at-once")
def test_many_batches_and_several_owners_make_no_difference(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(row_assignment, "_BATCH_BYTES", held * 16)
    with stores_of("three servers here") as open_store:
        emb = make(open_store)
        ids = torch.randperm(500)
        vectors = torch.randn(500, 2)
        emb.assign("item", ids, vectors)
        assert torch.equal(emb.lookup("item", ids), vectors)


def test_slots_of_every_layout_and_those_that_share() -> None:
    packed = ml.ids.pack_v2(9, IDS)
    slots = {
        "any": ml.Slot(2, id_layout="any"),
        "v2": ml.Slot(2, id_layout="v2", number=9),
        "raw": ml.Slot(2),
        "too": ml.Slot(shares="raw"),
    }
    emb = ml.Embeddings(slots)
    for name, ids in {"any": torch.tensor([-(2**63), -1, 2**63 - 1]), "v2": packed, "too": IDS}.items():
        emb.assign(name, ids, VECTORS)
        assert torch.equal(emb.lookup(name, ids), VECTORS)
    assert torch.equal(emb.lookup("raw", IDS), VECTORS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_every_width_and_arrays_are_taken(dtype: torch.dtype) -> None:
    emb = make()
    emb.assign("item", IDS, VECTORS.to(dtype).requires_grad_())
    assert torch.equal(emb.lookup("item", IDS), VECTORS)
    ids = IDS.numpy().copy()
    ids.flags.writeable = False  # as Arrow hands them out
    emb.assign("user", ids, VECTORS.double().numpy())
    assert torch.equal(emb.lookup("user", IDS), VECTORS)


@pytest.mark.parametrize(
    ("ids", "vectors", "kind", "message"),
    [
        (torch.tensor([1, 2]), VECTORS, InvalidArgumentError, r"'item': vectors must be \[2, 2\], .* got \[3, 2\]"),
        (IDS, VECTORS[:, :1], InvalidArgumentError, r"one of dim 2 for each id, got \[3, 1\]"),
        (IDS[:, None], VECTORS, InvalidArgumentError, r"ids must be int64 \[rows\], got \(3, 1\)"),
        (torch.tensor([5, 6, 5]), VECTORS, InvalidArgumentError, "each id must come once, got 5 more often"),
        (IDS, VECTORS.long(), TypeError, r"vectors must be floats, got torch.int64"),
        (IDS, VECTORS.tolist(), TypeError, "vectors must be a tensor or an array, got list"),
        (IDS.to(torch.int32), VECTORS, TypeError, "ids must be int64"),
        (IDS, VECTORS / torch.tensor([1.0, 0.0]), InvalidArgumentError, r"must be finite as float32, .* for id 3"),
        (IDS, VECTORS.double() * 1e38, InvalidArgumentError, rf"must be finite as float32, .* for id {2**40}"),
    ],
)
def test_what_cannot_be_rows_is_refused_and_nothing_changes(
    ids: torch.Tensor, vectors: torch.Tensor, kind: type[Exception], message: str
) -> None:
    emb = make()
    train(emb, torch.tensor([1, 3]))
    before = contents(emb)
    with pytest.raises(kind, match=message):
        emb.assign("item", ids, vectors)
    assert contents(emb) == before


def test_a_bad_vector_in_the_last_batch_is_found_before_the_first_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_assignment, "_BATCH_BYTES", 1)
    emb = make()
    with pytest.raises(InvalidArgumentError, match="for id 0"):
        emb.assign("item", IDS, torch.cat([VECTORS[:2], torch.full((1, 2), float("nan"))]))
    assert emb.num_rows == 0


def test_an_unknown_slot_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="slot 'itm' does not exist"):
        make().assign("itm", IDS, VECTORS)


def test_a_time_far_ahead_moves_the_clock_by_a_day_at_most_as_an_update_does() -> None:
    emb = make()
    train(emb, torch.tensor([1]), time=5000)
    emb.assign("item", IDS, VECTORS, time=5000 + 400 * 86400)
    assert isinstance(emb.store, LocalStore)
    table = TableGroup.of_store(emb.store)["2-adagrad"]
    assert table.newest_time == 5000 + 86400


def test_the_time_is_now_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1234.5)
    emb = make()
    emb.assign("item", IDS, VECTORS)
    assert {time for _, time in contents(emb).values()} == {1234}


def test_followers_of_changes_see_assigned_rows() -> None:
    emb = make()
    reader = emb.store.open_reader("follower")
    emb.assign("item", IDS, VECTORS)
    assert sum(block.count for block in reader.changes(state=True)) == 3
