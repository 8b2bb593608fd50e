"""state_dict, deep copies and stores that outlive a module."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch

import monolith as ml
from monolith.errors import FailedPreconditionError
from monolith.tables import LocalStore

SGD = ml.row_optimizers.Sgd(learning_rate=1.0)


def make(**slots: ml.Slot) -> ml.Embeddings:
    return ml.Embeddings(slots or {"user": ml.Slot(2, initializer=ml.initializers.Zeros())}, SGD)


def train(emb: ml.Embeddings, *ids: int) -> None:
    emb({"user": torch.tensor(ids)})["user"].sum().backward()
    emb.step()


def weights(emb: ml.Embeddings, *ids: int) -> list[float]:
    return emb.lookup("user", torch.tensor(ids))[:, 0].tolist()


def tables_of(emb: ml.Embeddings) -> ml.TableGroup:
    assert isinstance(emb.store, LocalStore)
    return emb.store.tables


def test_a_run_resumes_from_state_dict_and_tables(tmp_path: Path) -> None:
    model = torch.nn.Sequential(make(), torch.nn.Linear(2, 1))
    emb = model[0]
    assert isinstance(emb, ml.Embeddings)
    train(emb, 1, 1)
    train(emb, 1)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    tables_of(emb).save(tmp_path / "tables")

    resumed = torch.nn.Sequential(make(), torch.nn.Linear(2, 1))
    fresh = resumed[0]
    assert isinstance(fresh, ml.Embeddings)
    assert isinstance(fresh.store, LocalStore)
    fresh.store.tables.restore(tmp_path / "tables")
    fresh.store.resume(seq=1, applied=emb.store.cut(seq=1).applied, generation=0)
    resumed.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert all(torch.equal(*pair) for pair in zip(resumed.parameters(), model.parameters(), strict=True))
    assert fresh.global_step == 2
    train(fresh, 1)
    assert weights(fresh, 1) == [-4.0]


def test_a_store_ahead_of_the_module_is_noticed() -> None:
    """Without the module's numbers every batch would look like a repeated one and be dropped in silence."""
    emb = make()
    for _ in range(3):
        train(emb, 1)
    late = ml.Embeddings({"user": ml.Slot(2, initializer=ml.initializers.Zeros())}, SGD, store=emb.store)
    late({"user": torch.tensor([1])})["user"].sum().backward()
    with pytest.raises(FailedPreconditionError, match=r"the store had applied batch 0 before .* state_dict"):
        late.step()
    late.load_state_dict(emb.state_dict())
    train(late, 1)
    assert weights(late, 1) == [-4.0]


def test_the_state_is_plain_small_and_independent() -> None:
    emb = make()
    train(emb, *range(100))
    state = copy.deepcopy(emb.state_dict())
    train(emb, 1)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    assert buffer.tell() < 4096, "rows are saved with the store"
    assert state["_extra_state"]["global_step"] == 1
    assert state["_extra_state"]["slots"] == {"user": {"dim": 2, "table": "2-sgd", "number": 18674}}


@pytest.mark.parametrize(
    ("slot", "message"),
    [
        (
            ml.Slot(3),
            r"slot 'user': was saved with dim 2, now 3; table '2-sgd', now '3-sgd': its rows would not be found",
        ),
        (ml.Slot(2, number=4), r"slot 'user': was saved with number 18674, now 4"),
        (
            ml.Slot(2, optimizer=ml.row_optimizers.Adagrad()),
            r"slot 'user': was saved with table '2-sgd', now '2-adagrad'",
        ),
    ],
)
def test_a_slot_that_was_redefined_is_refused_by_name(slot: ml.Slot, message: str) -> None:
    state = make().state_dict()
    changed = make(user=slot)
    with pytest.raises(FailedPreconditionError, match=message):
        changed.load_state_dict(state)
    assert changed.global_step == 0


def test_slots_may_be_added_and_removed() -> None:
    old = make(user=ml.Slot(2), item=ml.Slot(2))
    new = make(user=ml.Slot(2), city=ml.Slot(2))
    new.load_state_dict(old.state_dict())
    assert list(new.tables) == list(old.tables), "so the table's rows are found again"


def test_a_state_of_another_format_is_refused() -> None:
    emb = make()
    with pytest.raises(FailedPreconditionError, match="expected a saved state of format 1, got 2"):
        emb.set_extra_state({"format": 2})


def test_a_deep_copy_looks_up_the_same_rows_and_has_its_own_gradients() -> None:
    model = torch.nn.Sequential(make(), torch.nn.Linear(2, 1))
    emb = model[0]
    assert isinstance(emb, ml.Embeddings)
    train(emb, 1)
    emb({"user": torch.tensor([1])})["user"].sum().backward()
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
    twin = copy.deepcopy(emb)
    for _ in range(3):
        train(emb, 1)
        train(twin, 1)
    assert weights(emb, 1) == [-6.0]
    assert emb.global_step == twin.global_step == 6


def test_averaged_models_of_torch_work() -> None:
    model = torch.nn.Sequential(make(), torch.nn.Linear(2, 1))
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    assert sum(isinstance(module, ml.Embeddings) for module in averaged.modules()) == 1


def test_pickling_is_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled: rows live in its store; save the model's state_dict\(\)"):
        pickle.dumps(make())
