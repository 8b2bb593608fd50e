"""Many backward passes without a step: they cost no more than the distinct ids in them, and one warning."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import monolith as ml
from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings import passes as _passes
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS

SGD = ml.row_optimizers.Sgd(learning_rate=1.0)


def content(emb: ml.Embeddings) -> dict[tuple[int, int], tuple[int, bytes]]:
    with emb.cut() as cut:
        return {
            (block.table, key): (time, payload.tobytes())
            for block in cut.blocks(ALL_BUCKETS, state=True)
            if block.kind is BlockKind.FULL
            for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True)
        }


def accumulate(emb: ml.Embeddings, passes: int, times: str) -> None:
    draws = torch.Generator().manual_seed(5)
    for number in range(passes):
        ids = {name: torch.randint(0, 30, (8,), generator=draws) for name in emb.slots}
        time: Any = {"one": 10**9, "growing": 10**9 + number, "by example": torch.arange(8) + 10**9 + number}[times]
        looked = emb(ids, time=time)
        (looked.concat() * torch.randn(looked.concat().shape, generator=draws)).sum().backward()


@pytest.mark.parametrize("times", ["one", "growing", "by example"])
def test_folded_passes_make_the_same_step_bit_for_bit(
    make_store: Any, monkeypatch: pytest.MonkeyPatch, times: str
) -> None:
    found = []
    for folded_passes in (10**9, 4):
        monkeypatch.setattr(_passes, "FOLDED_PASSES", folded_passes)
        delayed = ml.row_optimizers.DelayCompensated(ml.row_optimizers.Adagrad(learning_rate=0.5), 0.5)
        slots = {"a": ml.Slot(3, min_count=5), "b": ml.Slot(2, optimizer=delayed), "c": ml.Slot(2, expire_days=1)}
        emb = ml.Embeddings(
            slots,
            ml.row_optimizers.Adagrad(learning_rate=0.5),
            store=make_store,
            admission=ml.filters.SlidingHashFilter(capacity=10_000),
            accumulated_passes=21,
        )
        accumulate(emb, 21, times)
        assert (len(emb._registry._passes) == 21) == (folded_passes > 21)
        norm = emb.grad_norm()
        applied = emb.step()
        first = content(emb)
        assert emb.store.stats().open_plans == 0
        accumulate(emb, 6, times)
        emb.step()
        found.append((first, applied, float(norm), content(emb), emb.next_batch))
    assert found[0] == found[1]


def test_the_eighth_backward_pass_without_a_step_warns_once_and_names_the_line() -> None:
    emb = ml.Embeddings({"user": ml.Slot(2)}, SGD)

    def backward() -> None:
        emb({"user": torch.arange(4)})["user"].sum().backward()

    for _ in range(7):
        backward()
    with pytest.warns(UserWarning, match=r"8 backward passes without a step.*line `emb\.step\(\)` is missing"):
        backward()
    for _ in range(20):
        backward()  # a second warning would be an error


def test_a_missed_step_is_detected_where_zero_grad_clears_all_gradients() -> None:
    """The usual loop: the dense optimizer has all parameters, and clears them before each pass."""
    emb = ml.Embeddings({"user": ml.Slot(2)}, SGD)
    model = torch.nn.Sequential(emb, torch.nn.Linear(2, 1))
    adam = torch.optim.Adam(model.parameters())

    def train() -> None:
        adam.zero_grad()
        model[1](emb({"user": torch.arange(4)})["user"]).sum().backward()
        adam.step()

    for _ in range(7):
        train()
    with pytest.warns(UserWarning, match=r"no row has learned from them"):
        train()


@pytest.mark.parametrize("end", ["step", "zero_grad", "discard", "take_step"])
def test_seven_passes_before_each_step_and_many_lookups_of_one_pass_do_not_warn(end: str) -> None:
    emb = ml.Embeddings({"user": ml.Slot(2)}, SGD)
    for _ in range(3):
        for _ in range(7):
            sum(emb({"user": torch.arange(4) + number})["user"].sum() for number in range(9)).backward()
        getattr(emb, end)()


def test_longer_accumulation_declares_itself() -> None:
    emb = ml.Embeddings({"user": ml.Slot(2)}, SGD, accumulated_passes=9)
    for _ in range(9):
        emb({"user": torch.arange(4)})["user"].sum().backward()
    copied = emb.clone_rows()
    for _ in range(9):
        copied({"user": torch.arange(4)})["user"].sum().backward()
    with pytest.warns(UserWarning, match=r"accumulated_passes=20"):
        emb({"user": torch.arange(4)})["user"].sum().backward()
    for wrong in (0, 2.5, True):
        with pytest.raises(InvalidArgumentError, match="accumulated_passes must be an integer >= 1"):
            ml.Embeddings({"user": ml.Slot(2)}, accumulated_passes=wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_two_thousand_passes_without_a_step_keep_what_the_ids_need() -> None:
    slots = {"user": ml.Slot(2, initializer=ml.initializers.Zeros())}
    emb = ml.Embeddings(slots, SGD, accumulated_passes=2000)
    for number in range(2000):
        emb({"user": torch.arange(4) + number % 50})["user"].sum().backward()
    assert len(emb._registry._passes) <= _passes.FOLDED_PASSES
    assert emb.store.stats().open_plans == len(emb._registry._passes)
    assert sum(each.gradient.numel() for each in emb._registry.ready() if each.gradient is not None) <= 2 * 53 + 64 * 8
    emb.step()
    assert emb.lookup("user", torch.tensor([10]))[0, 0] == -160.0, "nothing was lost: 2000 / 50 x 4 occurrences"


def test_a_graph_that_is_kept_is_not_folded_and_still_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_passes, "FOLDED_PASSES", 3)
    emb = ml.Embeddings({"user": ml.Slot(1, initializer=ml.initializers.Zeros())}, SGD, accumulated_passes=12)
    kept = emb({"user": torch.tensor([1])})["user"].sum()
    kept.backward(retain_graph=True)
    for _ in range(10):
        emb({"user": torch.tensor([1])})["user"].sum().backward()
    assert len(emb._registry._passes) < 5
    kept.backward()
    emb.step()
    assert emb.lookup("user", torch.tensor([1])).item() == -12.0


def test_clearing_reaches_folded_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_passes, "FOLDED_PASSES", 3)
    emb = ml.Embeddings({"user": ml.Slot(1, initializer=ml.initializers.Zeros())}, SGD, accumulated_passes=11)
    model = torch.nn.Sequential(emb)
    for _ in range(10):
        emb({"user": torch.tensor([1])})["user"].sum().backward()
    seen = emb({"user": torch.tensor([1])})["user"].sum()  # folds what there is
    model.zero_grad()
    assert emb.discard() == 0
    seen.backward()
    emb.step()
    assert emb.lookup("user", torch.tensor([1])).item() == -1.0
    assert emb.store.stats().open_plans == 0


def test_a_refused_fold_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_passes, "FOLDED_PASSES", 3)
    emb = ml.Embeddings({"user": ml.Slot(1, initializer=ml.initializers.Zeros())}, SGD)
    for _ in range(3):
        emb({"user": torch.tensor([1])})["user"].sum().backward()
    with monkeypatch.context() as broken:
        broken.setattr(_passes, "fold", _fails)
        with pytest.raises(MemoryError):
            emb({"user": torch.tensor([1])})
    emb.step()
    assert emb.lookup("user", torch.tensor([1])).item() == -3.0


def _fails(*_: object) -> None:
    raise MemoryError
