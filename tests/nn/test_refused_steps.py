"""A step that the store refuses changes no row, and does not keep the module from training on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import monolith as ml
from monolith.errors import InvalidArgumentError, UnavailableError
from monolith.tables.local.store import LocalWorkerSession

SGD = ml.row_optimizers.Sgd(learning_rate=1.0)
LARGE = 3e38
"""Finite, and twice as much is not."""


def make() -> ml.Embeddings:
    slots = {name: ml.Slot(1, initializer=ml.initializers.Zeros()) for name in ("user", "item")}
    return ml.Embeddings(slots, SGD)


def learn(emb: ml.Embeddings, user: int, item: int, *, factor: float = 1.0) -> None:
    x = emb({"user": torch.tensor([user]), "item": torch.tensor([item])})
    (x["user"].sum() + factor * x["item"].sum()).backward()


def rows(emb: ml.Embeddings, ids: list[int]) -> list[float]:
    found: list[float] = emb.lookup("user", torch.tensor(ids)).flatten().tolist()
    return found


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_refuses_its_step_and_not_the_next_one(bad: float) -> None:
    emb = make()
    learn(emb, 1, 2, factor=bad)
    with pytest.raises(InvalidArgumentError, match=r"^slot 'item': the gradient of id 2 in example 0 is not finite"):
        emb.step()
    assert emb.num_rows == 0
    assert emb.store.stats().open_plans == 0
    assert emb.discard() == 0
    learn(emb, 5, 6)
    assert emb.step().updated == 2
    assert rows(emb, [1, 5]) == [0.0, -1.0]


@pytest.mark.parametrize(
    ("layout", "shown"),
    [("int64", -(2**63)), ("raw", 2**48 - 1), ("v2", 7 << 48 | 3), ("any", -9)],
)
def test_a_rejected_gradient_is_reported_by_slot_id_and_example(layout: Any, shown: int) -> None:
    slots = {
        "tags": ml.Slot(1, combiner="mean", initializer=ml.initializers.Zeros(), id_layout=layout, number=7),
        "user": ml.Slot(2),
    }
    if layout == "any":
        slots["tags"] = ml.Slot(1, combiner="mean", id_layout="any")
    emb = ml.Embeddings(slots, SGD)
    good = 7 << 48 | 1 if layout == "v2" else 1
    x = emb({"user": torch.tensor([1, 2, 3]), "tags": ml.Ragged.from_lists([[good], [], [good, shown]])})
    (x["tags"] * torch.tensor([[1.0], [1.0], [math.nan]])).sum().backward()
    with pytest.raises(InvalidArgumentError, match=r"slot 'tags': the gradient of id .* in example [02] is not finite"):
        emb.step()
    x = emb({"user": torch.tensor([1, 2]), "tags": ml.Ragged.from_lists([[good], [shown]])})
    (x["tags"] * torch.tensor([[1.0], [math.inf]])).sum().backward()
    with pytest.raises(InvalidArgumentError, match=rf"slot 'tags': the gradient of id {shown} in example 1 is not"):
        emb.step()


def test_a_rejected_scale_reports_how_to_recover() -> None:
    emb = make()
    learn(emb, 1, 2)
    with pytest.raises(InvalidArgumentError, match=r"scale must be finite, got nan.*discard\(\)"):
        emb.step(scale=math.nan)
    assert emb.discard() == 1


def test_a_refused_step_takes_all_of_its_passes_with_it_and_no_later_ones() -> None:
    emb = make()
    learn(emb, 1, 2, factor=math.nan)
    learn(emb, 3, 4)
    taken = emb.take_step()
    learn(emb, 5, 6)
    assert taken is not None
    with pytest.raises(InvalidArgumentError, match="is not finite"):
        taken.apply()
    assert emb.step().updated == 2
    assert rows(emb, [1, 3, 5]) == [0.0, 0.0, -1.0]


def test_gradients_that_a_store_could_not_take_are_kept_for_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    emb = make()
    learn(emb, 1, 2)
    with monkeypatch.context() as broken:

        def fail(*_: Any) -> None:
            raise UnavailableError("store: it is away")

        broken.setattr(LocalWorkerSession, "apply", fail)
        with pytest.raises(UnavailableError):
            emb.step()
    assert emb.step().updated == 2
    assert rows(emb, [1]) == [-1.0]


def test_gradients_of_a_step_that_was_applied_are_not_applied_again() -> None:
    emb = make()
    learn(emb, 1, 2)
    emb.step()
    assert emb.discard() == 0
    learn(emb, 3, 4)
    emb.step()
    assert rows(emb, [1, 3]) == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("passes", "backwards", "ids"),
    [(2, 1, [5]), (1, 2, [5]), (1, 1, [5, 5])],
    ids=["passes", "backwards", "duplicates"],
)
def test_finite_gradients_whose_sum_is_not_finite_are_refused(passes: int, backwards: int, ids: list[int]) -> None:
    emb = ml.Embeddings({"user": ml.Slot(1, initializer=ml.initializers.Zeros())}, SGD)
    for _ in range(passes):
        loss = LARGE * emb({"user": torch.tensor(ids)})["user"].sum()
        for left in range(backwards, 0, -1):
            loss.backward(retain_graph=left > 1)
    with pytest.raises(
        InvalidArgumentError, match=r"^slot 'user': the gradient of id 5 in .* not finite; nothing was applied"
    ):
        emb.step()
    assert emb.num_rows == 0


@pytest.mark.parametrize("num_slots", [1, 6])
def test_sums_that_are_not_finite_are_refused_however_many_slots_there_are(num_slots: int) -> None:
    names = [f"slot{number}" for number in range(num_slots)]
    emb = ml.Embeddings({name: ml.Slot(1, initializer=ml.initializers.Zeros()) for name in names}, SGD)
    (LARGE * emb(dict.fromkeys(names, torch.tensor([5, 5]))).concat().sum()).backward()
    with pytest.raises(InvalidArgumentError, match=r"^slot 'slot0': .* id 5 .*not finite"):
        emb.step()
    assert emb.num_rows == 0


def test_one_large_gradient_is_applied() -> None:
    emb = ml.Embeddings({"user": ml.Slot(1, initializer=ml.initializers.Zeros())}, SGD)
    (LARGE * emb({"user": torch.tensor([5])})["user"].sum()).backward()
    assert emb.step().updated == 1
    assert rows(emb, [5]) == pytest.approx([-LARGE])
