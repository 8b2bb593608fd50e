"""state_dict, deep copies and stores that outlive a module."""

from __future__ import annotations

import copy
import io
import json
import pickle
from pathlib import Path

import pytest
import torch

import monolith as ml
from monolith.checkpoint import TrainState
from monolith.errors import FailedPreconditionError
from monolith.tables import BatchStamp, LocalStore

SGD = ml.row_optimizers.Sgd(learning_rate=1.0)


def make(**slots: ml.Slot) -> ml.Embeddings:
    return ml.Embeddings(
        slots or {"user": ml.Slot(2, initializer=ml.initializers.Zeros())}, SGD, rows_in_state_dict=False
    )


def train(emb: ml.Embeddings, *ids: int) -> None:
    emb({"user": torch.tensor(ids)})["user"].sum().backward()
    emb.step()


def weights(emb: ml.Embeddings, *ids: int) -> list[float]:
    return emb.lookup("user", torch.tensor(ids))[:, 0].tolist()


def tables_of(emb: ml.Embeddings) -> ml.TableGroup:
    assert isinstance(emb.store, LocalStore)
    return ml.TableGroup.of_store(emb.store)


@pytest.mark.parametrize("resumes_store", [False, True])
def test_a_run_resumes_from_state_dict_and_tables(tmp_path: Path, *, resumes_store: bool) -> None:
    """With the store's own numbers, as a checkpoint restores them, or with its rows alone."""
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
    tables_of(fresh).restore(tmp_path / "tables")
    if resumes_store:
        fresh.store.resume(applied=emb.store.cut().applied, generation=0)
    resumed.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert all(torch.equal(*pair) for pair in zip(resumed.parameters(), model.parameters(), strict=True))
    assert fresh.global_step == 2
    train(fresh, 1)
    assert weights(fresh, 1) == [-4.0]
    assert fresh.store.stats().applied == {0: 2 if resumes_store else 0}
    assert fresh.evict() == 0


def test_a_module_made_later_resumes_from_the_store_and_the_earlier_one_is_rejected() -> None:
    """As after a restart under the same number: nothing is taken for a repeated batch, and nobody trains in vain."""
    emb = make()
    for _ in range(3):
        train(emb, 1)
    late = ml.Embeddings({"user": ml.Slot(2, initializer=ml.initializers.Zeros())}, SGD, store=emb.store)
    assert weights(late, 1) == [-3.0]
    train(emb, 1)  # looking does not join
    train(late, 1)
    assert weights(late, 1) == [-5.0]
    with pytest.raises(FailedPreconditionError, match=r"worker 0: this incarnation \(1\) is over, a later one \(2\)"):
        train(emb, 1)
    emb.join()
    train(emb, 1)
    assert weights(emb, 1) == [-6.0]


def test_workers_of_one_store_have_numbers_and_steps_of_their_own() -> None:
    first = make()
    second = ml.Embeddings({"user": ml.Slot(2, initializer=ml.initializers.Zeros())}, SGD, store=first.store)
    second.join(1)
    for _ in range(5):
        train(first, 1)
    train(second, 1)
    assert weights(first, 1) == weights(second, 1) == [-6.0]
    assert first.store.stats().applied == {0: 4, 1: 0}
    assert second.evict() == 0
    with second.cut() as cut:
        (clock,) = cut.applied
    assert {worker: stamp.seq for worker, stamp in clock.stamps.items()} == {0: 4, 1: 0}
    with pytest.raises(FailedPreconditionError, match=r"a batch of worker 2, but the module has joined .* as worker 1"):
        second({"user": torch.tensor([1])}, stamp=BatchStamp(worker=2, seq=0))


def test_a_train_state_issues_stamps_of_the_requested_worker() -> None:
    emb = make()
    state = TrainState(model=emb)
    for number in range(2):
        stamp = state.next_stamp(b"%d" % number, worker=3)
        assert (stamp.worker, stamp.seq) == (3, number)
        emb({"user": torch.tensor([1])}, stamp=stamp)["user"].sum().backward()
        emb.step()
        state.count_step(stamp)
    assert emb.store.stats().applied == {3: 1}
    assert (state.position(3), state.position()) == (b"1", None)
    with pytest.raises(FailedPreconditionError, match="joined its store as worker 3"):
        state.next_stamp()


def test_the_state_is_plain_small_and_independent() -> None:
    emb = make()
    train(emb, *range(100))
    state = copy.deepcopy(emb.state_dict())
    train(emb, 1)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    assert buffer.tell() < 4096, "rows are saved with the store"
    saved = json.loads(state["_extra_state"].numpy().tobytes())
    assert (saved["format"], saved["global_step"], saved["rows"]) == (3, 1, 100)
    assert saved["slots"] == {"user": {"dim": 2, "table": "2-sgd", "number": 18674}}


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


def test_slots_whose_names_have_the_same_number_find_their_rows_again() -> None:
    """``ad_4`` and ``fc_user_259`` both hash to 28227."""
    old = make(fc_user_259=ml.Slot(2), ad_4=ml.Slot(2))
    new = make(ad_4=ml.Slot(2), fc_user_259=ml.Slot(2))
    new.load_state_dict(old.state_dict())
    assert [slot["number"] for slot in new.saved_state()["slots"].values()] == [28227, 28228]


def test_a_slot_that_takes_an_older_slots_number_raises_an_error_that_explains_how_to_keep_rows() -> None:
    state = make(fc_user_259=ml.Slot(2)).state_dict()
    both = make(fc_user_259=ml.Slot(2), ad_4=ml.Slot(2))
    with pytest.raises(
        FailedPreconditionError,
        match=r"slot 'fc_user_259': was saved with number 28227, now 28228: .* as it was with number=28227; or, to",
    ):
        both.load_state_dict(state)
    make(fc_user_259=ml.Slot(2, number=28227), ad_4=ml.Slot(2)).load_state_dict(state)


def test_a_state_of_another_format_is_refused() -> None:
    emb = make()
    with pytest.raises(FailedPreconditionError, match="expected a saved state of format 1 to 3, got 4"):
        emb.set_extra_state({"format": 4})


def test_pickling_is_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled: rows live in its store; save the model by ml.save"):
        pickle.dumps(make())
