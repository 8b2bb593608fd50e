"""Copies of a model share its rows or have rows of their own, as was said; never by surprise."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import monolith as ml
from monolith.errors import FailedPreconditionError, InvalidArgumentError

SGD = ml.row_optimizers.Sgd(learning_rate=1.0)


def make(store: Any = None) -> ml.Embeddings:
    return ml.Embeddings({"user": ml.Slot(2, initializer=ml.initializers.Zeros())}, SGD, store=store)


def train(emb: ml.Embeddings, *ids: int) -> None:
    emb({"user": torch.tensor(ids)})["user"].sum().backward()
    emb.step()


def weights(emb: ml.Embeddings, *ids: int) -> list[float]:
    return emb.lookup("user", torch.tensor(ids))[:, 0].tolist()


def embeddings_of(model: torch.nn.Module) -> ml.Embeddings:
    (found,) = (module for module in model.modules() if isinstance(module, ml.Embeddings))
    return found


def test_a_deep_copy_looks_up_the_same_rows_and_has_its_own_gradients() -> None:
    model = torch.nn.Sequential(make(), torch.nn.Linear(2, 1))
    emb = model[0]
    assert isinstance(emb, ml.Embeddings)
    train(emb, 1)
    emb({"user": torch.tensor([1])})["user"].sum().backward()
    emb.deep_copies = "share"
    copied = copy.deepcopy(model)
    twin = copied[0]
    assert isinstance(twin, ml.Embeddings)
    assert twin.store is emb.store
    assert twin._buffers["_place"] is not emb._buffers["_place"]
    assert twin.eval().training is False
    assert emb.training is True
    with pytest.raises(FailedPreconditionError, match="no gradients"):
        twin.step()
    emb.step()
    assert twin({"user": torch.tensor([1])})["user"].tolist() == [[-2.0, -2.0]]


def test_original_and_copy_can_both_train() -> None:
    emb = make()
    emb.deep_copies = "share"
    twin = copy.deepcopy(emb)
    for _ in range(3):
        train(emb, 1)
        train(twin, 1)
    assert weights(emb, 1) == [-6.0]
    assert emb.global_step == twin.global_step == 6


@pytest.mark.parametrize("copied", [copy.deepcopy, AveragedModel])
def test_a_deep_copy_without_a_word_about_rows_is_refused(copied: Any) -> None:
    model = torch.nn.Sequential(make(), torch.nn.Linear(2, 1))
    with pytest.raises(FailedPreconditionError, match=r"emb.deep_copies = 'share' .*AveragedModel.* or 'clone'"):
        copied(model)
    with pytest.raises(InvalidArgumentError, match="deep_copies must be 'share', 'clone' or None, got 'both'"):
        make().deep_copies = "both"  # type: ignore[assignment]


def test_a_copy_of_the_best_model_keeps_its_rows_while_training_continues() -> None:
    model = torch.nn.Sequential(make(), torch.nn.Linear(2, 1))
    emb = embeddings_of(model)
    emb.deep_copies = "clone"
    train(emb, 1)
    best = copy.deepcopy(model)
    train(emb, 1)
    kept = embeddings_of(best)
    assert (weights(emb, 1), weights(kept, 1)) == ([-2.0], [-1.0])
    assert kept.store is not emb.store
    train(kept, 1, 2)
    assert (weights(emb, 1, 2), weights(kept, 1, 2)) == ([-2.0, 0.0], [-2.0, -1.0])
    assert (emb.global_step, kept.global_step) == (2, 2)


def test_cloned_rows_have_optimizer_state_and_counts_on_every_engine(make_store: Any) -> None:
    slots = {"user": ml.Slot(2, min_count=2)}
    adagrad = ml.row_optimizers.Adagrad(learning_rate=0.5)
    emb = ml.Embeddings(slots, adagrad, store=make_store, admission=ml.filters.SlidingHashFilter(capacity=1000))
    for _ in range(3):
        train(emb, 1)
    train(emb, 2)
    twin = emb.clone_rows()
    assert type(twin.store) is type(emb.store)
    for each in (emb, twin):
        train(each, 1, 2)
        train(each, 2)
        train(each, 2)
    assert twin.num_rows == emb.num_rows == 2
    assert torch.equal(twin.lookup("user", torch.tensor([1, 2])), emb.lookup("user", torch.tensor([1, 2])))


def test_modules_of_one_store_share_the_cloned_one() -> None:
    emb = make()
    other = make(emb.store)
    for each in (emb, other):
        each.deep_copies = "clone"
    first, second = copy.deepcopy(torch.nn.ModuleList([emb, other]))
    assert isinstance(first, ml.Embeddings)
    assert isinstance(second, ml.Embeddings)
    assert first.store is second.store
    assert first.store is not emb.store


def test_gradients_stay_with_the_source_module() -> None:
    emb = make()
    emb({"user": torch.tensor([1])})["user"].sum().backward()
    twin = emb.clone_rows()
    with pytest.raises(FailedPreconditionError, match="no gradients"):
        twin.step()
    emb.step()


@pytest.mark.parametrize("kind", ["share", "clone"])
def test_averaged_models_average_the_weights_and_share_or_clone_rows_as_requested(kind: Any) -> None:
    model = torch.nn.Sequential(make(), torch.nn.Linear(2, 1))
    emb = embeddings_of(model)
    emb.deep_copies = kind
    train(emb, 1)
    half = get_ema_multi_avg_fn(0.5)  # type: ignore[no-untyped-call]  # torch gives it no types
    averaged = AveragedModel(model, multi_avg_fn=half)
    for value in (0.0, 1.0):
        torch.nn.init.constant_(model[1].weight, value)  # type: ignore[arg-type]
        averaged.update_parameters(model)
        train(emb, 1)
    assert averaged.state_dict()["module.1.weight"].eq(0.5).all()
    assert weights(embeddings_of(averaged), 1) == ([-3.0] if kind == "share" else [-1.0])
    fresh = AveragedModel(model, multi_avg_fn=half)
    fresh.load_state_dict(averaged.state_dict())
    assert weights(embeddings_of(fresh), 1) == weights(embeddings_of(averaged), 1)
