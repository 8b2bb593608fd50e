"""Loops of one's own over rows whose store answers later: what is on its way counts, unless it fails."""

from __future__ import annotations

import pytest
import torch

import monolith as ml
from monolith.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from monolith.nn.embeddings.gradient_step import GradientStep
from nn.late_store import LateStore, Wire

BATCH = {"user": torch.tensor([7])}


def make() -> tuple[ml.Embeddings, Wire]:
    """A row that counts the updates that it has got."""
    slot = ml.Slot(dim=1, initializer=ml.initializers.Zeros())
    emb = ml.Embeddings({"user": slot}, optimizer=ml.row_optimizers.Sgd(learning_rate=1.0), store=LateStore)
    assert isinstance(emb.store, LateStore)
    return emb, emb.store.wire


def begun(emb: ml.Embeddings) -> GradientStep:
    """A step that is on its way."""
    (-emb(BATCH)["user"].sum()).backward()
    step = emb.take_step()
    assert step is not None
    step.begin()
    return step


def count(emb: ml.Embeddings) -> int:
    return round(float(emb.lookup("user", torch.tensor([7]))))


def test_step_waits_for_its_update() -> None:
    emb, wire = make()
    (-emb(BATCH)["user"].sum()).backward()
    assert emb.step().inserted == 1
    assert not wire.unanswered
    assert wire.waited_for == ["read 0", "push 0"]


def test_rows_that_are_read_ahead_are_waited_for_by_the_forward_pass_alone() -> None:
    emb, wire = make()
    first, second = emb.plan(BATCH), emb.plan(BATCH)
    emb.read_ahead(first)
    emb.read_ahead(second)
    assert wire.together[-1] == ["read 0", "read 1"]
    assert not wire.waited_for
    emb(first)
    assert wire.waited_for == ["read 0"]
    emb.drop(second)
    assert wire.sent[-1] == "drop 1"


def test_updates_in_flight_reference_their_predecessors_and_reads_follow_them() -> None:
    emb, wire = make()
    steps = [begun(emb), begun(emb), begun(emb)]
    assert wire.previous == [-1, 0, 1]
    assert emb.global_step == 3
    assert emb.next_batch == 3
    assert count(emb) == 3
    assert [step.result().updated for step in steps] == [1, 1, 1]
    assert emb.store.stats().open_plans == 0


def test_a_failed_update_counts_no_longer_and_its_gradients_go_with_the_next() -> None:
    emb, wire = make()
    begun(emb).result()
    wire.failures["push 1"] = UnavailableError("gone")
    failed = begun(emb)
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"^step: the push of batch 1 of worker 0 failed: gone$"):
            failed.result()
    assert emb.global_step == 1
    assert begun(emb).result().updated == 1
    assert wire.previous == [-1, 0, 0]
    assert count(emb) == 3
    assert emb.store.stats().open_plans == 0


def test_an_update_after_a_failed_one_is_reported_with_its_batches() -> None:
    emb, wire = make()
    wire.failures["push 0"] = UnavailableError("gone")
    first = begun(emb)
    wire.answer_all()
    second = emb.plan(BATCH)
    with pytest.raises(FailedPreconditionError, match="cannot read after batch 0"):
        emb(second)
    with pytest.raises(UnavailableError):
        first.result()
    wire.failures["push 2"] = UnavailableError("gone again")
    with pytest.raises(UnavailableError, match="the push of batches 0 to 2 of worker 0"):
        begun(emb).result()


def test_a_rejected_update_drops_its_gradients_and_reports_their_batch_and_worker() -> None:
    emb, wire = make()
    wire.failures["push 0"] = InvalidArgumentError("gradient of id 7 is not finite")
    refused = begun(emb)
    with pytest.raises(InvalidArgumentError, match="batch 0 of worker 0 failed: gradient of id 7"):
        refused.result()
    assert begun(emb).result().updated == 1
    assert count(emb) == 1
    assert emb.store.stats().open_plans == 0


def test_an_update_whose_answer_was_lost_counts_when_a_later_one_was_taken() -> None:
    emb, wire = make()
    first = begun(emb)
    wire.answer_all()
    second = begun(emb)
    wire.answer_all()
    assert wire.previous == [-1, 0]
    first._pending.outcome = UnavailableError("the answer was lost")  # type: ignore[union-attr]
    with pytest.raises(UnavailableError):
        first.result()
    assert second.result().updated == 1
    assert wire.sent[-1] == "drop 0", "its gradients were back in the module, and are of no use any more"
    begun(emb).result()
    assert wire.previous == [-1, 0, 1]
    assert count(emb) == 3


def test_a_limit_of_waiting_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    emb, wire = make()
    step = begun(emb)

    def too_late(_: object) -> None:
        raise DeadlineExceededError("not yet")

    with monkeypatch.context() as patch:
        patch.setattr(wire, "wait_for", too_late)
        with pytest.raises(DeadlineExceededError):
            step.result(timeout_seconds=0.0)
    assert not step.done()
    assert step.result().updated == 1
    assert step.done()


def test_an_interrupted_step_is_left_to_the_store_and_is_not_applied_twice() -> None:
    emb, wire = make()
    wire.interrupted.add("push 0")
    planned = emb.plan(BATCH)
    (-emb(planned)["user"].sum()).backward()
    with pytest.raises(KeyboardInterrupt):
        emb.step()
    wire.answer_all()
    with pytest.raises(FailedPreconditionError, match="was applied already"):  # and the module has let go of it
        emb(planned)
    (-emb(BATCH)["user"].sum()).backward()
    emb.step()
    assert wire.previous == [-1, 0]
    assert count(emb) == 2
    assert emb.store.stats().open_plans == 0


def test_a_step_whose_result_is_never_requested_is_not_dropped_by_the_next() -> None:
    emb, wire = make()
    begun(emb)
    begun(emb).result()
    assert "drop 0" not in wire.sent
    assert count(emb) == 2


def test_a_result_before_begin_raises_an_error_that_names_the_missing_call() -> None:
    emb, _ = make()
    (-emb(BATCH)["user"].sum()).backward()
    step = emb.take_step()
    assert step is not None
    with pytest.raises(FailedPreconditionError, match=r"call begin\(\) first"):
        step.result()
    step.drop()
    assert emb.discard() == 0
