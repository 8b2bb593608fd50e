"""What a user of `Embeddings` relies on: one buffer, one node, one step; training, evaluation, admission, expiry."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

import monolith as ml
from monolith.errors import FailedPreconditionError
from monolith.nn.combiners import FirstN
from monolith.nn.embeddings.pooling import PooledBatch
from monolith.tables import BatchStamp, LocalStore, TableGroup

SGD = ml.row_optimizers.Sgd(learning_rate=1.0)
ZEROS = ml.initializers.Zeros()
DAY = 86400


def make(optimizer: ml.row_optimizers.RowOptimizer = SGD, **slots: ml.Slot) -> ml.Embeddings:
    return ml.Embeddings(slots or {"user": ml.Slot(2, initializer=ZEROS)}, optimizer)


def train(emb: ml.Embeddings, ids: list[int], **options: int) -> None:
    """Every occurrence gets a gradient of 1, so SGD moves a row by minus its number of occurrences."""
    emb({"user": torch.tensor(ids)}, **options)["user"].sum().backward()
    emb.step()


def weights(emb: ml.Embeddings, *ids: int, slot: str = "user") -> list[float]:
    return emb.lookup(slot, torch.tensor(ids))[:, 0].tolist()


def open_plans(emb: ml.Embeddings) -> int:
    return emb.store.stats().open_plans


# Outputs


def test_outputs_are_views_of_one_buffer_from_one_node() -> None:
    emb = make(user=ml.Slot(2), item=ml.Slot(3), history=ml.Slot(shares="item", combiner=FirstN(2)))
    x = emb({"user": torch.tensor([1]), "item": torch.tensor([2]), "history": torch.tensor([[3, 4]])})
    assert {name: tuple(output.shape) for name, output in x.items()} == {
        "user": (1, 2),
        "item": (1, 3),
        "history": (1, 2, 3),
    }
    storage = x.concat().untyped_storage().data_ptr()
    assert all(output.untyped_storage().data_ptr() == storage for output in x.values())
    assert all(output.grad_fn is x.concat().grad_fn for output in x.values())
    assert x.concat().shape == (1, 11)


def test_concat_and_stack_take_all_slots_or_those_named() -> None:
    emb = make(a=ml.Slot(2), b=ml.Slot(2), c=ml.Slot(2))
    batch = {"a": torch.tensor([1, 2]), "b": torch.tensor([1, 2]), "c": torch.tensor([1, 2])}
    emb(batch).concat().sum().backward()
    emb.step()
    x = emb(batch)
    assert torch.equal(x.stack(), torch.stack(list(x.values()), dim=1))
    assert torch.equal(x.stack("c", "a"), torch.stack([x["c"], x["a"]], dim=1))
    assert torch.equal(x.concat("c", "a"), torch.cat([x["c"], x["a"]], dim=1))
    with pytest.raises(ValueError, match=r"stack: slots must have outputs of one shape, got .*'b': \(3,\).*use concat"):
        make(a=ml.Slot(2), b=ml.Slot(3))({"a": torch.tensor([1]), "b": torch.tensor([1])}).stack()


def test_gradients_of_the_buffer_and_of_its_parts_add_up() -> None:
    emb = make(user=ml.Slot(2, initializer=ZEROS), item=ml.Slot(2, initializer=ZEROS))
    x = emb({"user": torch.tensor([1]), "item": torch.tensor([1])})
    (x.concat().sum() + 2 * x["user"].sum() + x.stack()[:, 1].sum()).backward()
    emb.step()
    assert weights(emb, 1, slot="user") == [-3.0]
    assert weights(emb, 1, slot="item") == [-2.0]


def test_changing_an_output_in_place_is_refused_before_it_changes_the_others() -> None:
    x = make()({"user": torch.tensor([1])})
    with pytest.raises(RuntimeError, match="modified inplace"):
        x["user"].add_(1)


@pytest.mark.parametrize("form", [lambda g: g.expand(4, 2), lambda g: g.expand(4, 2).t().contiguous().t()])
def test_gradients_of_any_stride_arrive(form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    emb = make()
    x = emb({"user": torch.tensor([1, 2, 1, 3])})
    x["user"].backward(form(torch.tensor([[1.0, 5.0]])))
    emb.step()
    assert emb.lookup("user", torch.tensor([1, 2])).tolist() == [[-2.0, -10.0], [-1.0, -5.0]]


# Ids


def test_equal_ids_of_merged_slots_have_rows_of_their_own() -> None:
    emb = make(user=ml.Slot(2, initializer=ZEROS), item=ml.Slot(2, initializer=ZEROS))
    assert len(emb.tables) == 1
    x = emb({"user": torch.tensor([7]), "item": torch.tensor([7])})
    (x["user"].sum() + 5 * x["item"].sum()).backward()
    assert emb.step().inserted == 2
    assert weights(emb, 7, slot="user") == [-1.0]
    assert weights(emb, 7, slot="item") == [-5.0]


def test_ids_of_the_v2_layout_are_taken_as_they_are() -> None:
    emb = make(user=ml.Slot(2, initializer=ZEROS, id_layout="v2", number=9), item=ml.Slot(2, initializer=ZEROS))
    user = ml.ids.pack_v2(9, torch.tensor([0, 2**48 - 1]))
    x = emb({"user": user, "item": torch.tensor([0, 0])})
    x["user"].sum().backward()
    emb.step()
    assert emb.lookup("user", user).tolist() == [[-1.0, -1.0], [-1.0, -1.0]]
    assert isinstance(emb.store, LocalStore)
    assert TableGroup.of_store(emb.store)["2-sgd"].contains(user).all()


def test_inputs_of_every_form_mean_the_same() -> None:
    forms = [
        torch.tensor([[5, 6], [7, 5]]),
        torch.tensor([[5, 7], [6, 5]]).t(),
        np.array([[5, 6], [7, 5]]),
        np.array([[5, 0, 6], [7, 0, 5]])[:, ::2],
        ml.Ragged.from_lists([[5, 6], [7, 5]]),
    ]
    rows = []
    for ids in forms:
        emb = make()
        emb({"user": ids, "label": torch.zeros(3)})["user"].sum().backward()
        emb.step()
        rows.append(weights(emb, 5, 6, 7))
    assert rows == [[-2.0, -1.0, -1.0]] * len(forms)


def test_the_caller_s_ids_are_not_changed() -> None:
    emb = make(user=ml.Slot(2), item=ml.Slot(2))
    ids = torch.arange(4)
    emb({"user": ids, "item": ids})
    assert ids.tolist() == [0, 1, 2, 3]


# Training


def test_an_id_reads_zeros_until_it_was_trained() -> None:
    emb = make(user=ml.Slot(2, initializer=ml.initializers.Constant(3.0)))
    assert emb({"user": torch.tensor([1])})["user"].tolist() == [[0.0, 0.0]]
    assert emb.num_rows == 0
    train(emb, [1])
    assert weights(emb, 1) == [2.0], "the row started from 3"


def test_backward_passes_add_up_to_one_step() -> None:
    emb = make(ml.row_optimizers.Adagrad(learning_rate=1.0, initial_accumulator_value=0.0))
    for ids in ([1, 1], [1, 2]):
        emb({"user": torch.tensor(ids)})["user"].sum().backward()
    applied = emb.step()
    assert (applied.updated, applied.inserted) == (2, 2)
    assert weights(emb, 1, 2) == [-1.0, -1.0], "one step of Adagrad is of size 1, two would be more"


def test_a_second_backward_pass_adds_to_the_first() -> None:
    emb = make()
    x = emb({"user": torch.tensor([1])})
    x["user"].sum().backward()
    (3 * x["user"].sum()).backward()
    emb.step()
    assert weights(emb, 1) == [-4.0]


def test_a_graph_may_be_used_after_the_step_of_an_earlier_batch_but_not_of_its_own() -> None:
    emb = make()
    first, second = (emb({"user": torch.tensor([key])})["user"].sum() for key in (1, 2))
    first.backward()
    emb.step()
    second.backward()
    emb.step()
    assert weights(emb, 1, 2) == [-1.0, -1.0]
    with pytest.raises(FailedPreconditionError, match=r"backward: the batch of this graph has ended already"):
        second.backward()
    assert weights(emb, 1, 2) == [-1.0, -1.0]


def test_a_batch_that_was_overtaken_has_ended() -> None:
    """Stores take the batches of a worker in order, so the older one could not be applied any more."""
    emb = make()
    first, second = (emb({"user": torch.tensor([key])})["user"].sum() for key in (1, 2))
    second.backward()
    emb.step()
    assert open_plans(emb) == 0
    with pytest.raises(FailedPreconditionError, match="it, or a later one, was applied"):
        first.backward()
    assert emb.num_rows == 1


def test_scale_multiplies_the_gradients_and_may_be_a_tensor() -> None:
    emb = make()
    for scale in (0.5, torch.tensor(0.25)):
        emb({"user": torch.tensor([1, 1])})["user"].sum().backward()
        emb.step(scale=scale)
    assert weights(emb, 1) == [-1.5]


def test_grad_norm_is_that_of_the_rows_after_summing_over_ids_and_passes() -> None:
    emb = make(user=ml.Slot(2, initializer=ZEROS), tags=ml.Slot(3, initializer=ZEROS))
    assert emb.grad_norm() == 0
    for factor in (1.0, 2.0):
        x = emb({"user": torch.tensor([1, 1, 2]), "tags": torch.tensor([[1, 2]] * 3)})
        (factor * x["user"].sum() + factor * x["tags"].sum()).backward()
        if factor == 1.0:
            # user 1: 2 in 2 dims, user 2: 1 in 2 dims, two tags: 3 in 3 dims
            torch.testing.assert_close(emb.grad_norm() ** 2, torch.tensor(2 * 4.0 + 2 * 1.0 + 2 * 3 * 9.0))
    torch.testing.assert_close(emb.grad_norm() ** 2, torch.tensor(9 * (2 * 4.0 + 2 * 1.0 + 2 * 3 * 9.0)))
    emb.step()
    assert emb.grad_norm() == 0


def test_joint_clipping_matches_the_worked_example_of_upstream() -> None:
    """A row of ones, slices 3 and 1, loss = sum of the first three + a variable, SGD, clip norm 1: the norm is 2."""
    emb = make(user=ml.Slot(slices=[ml.Slice(3), ml.Slice(1)], initializer=ml.initializers.Constant(1.0)))
    emb({"user": torch.tensor([1])})["user"].mul(0).sum().backward()
    emb.step()
    variable = torch.ones(1, requires_grad=True)
    head, _ = emb.slots["user"].split(emb({"user": torch.tensor([1])})["user"])
    torch.autograd.backward(head.sum() + variable.sum())
    assert variable.grad is not None
    norm = torch.hypot(emb.grad_norm(), variable.grad.norm())
    assert norm == 2.0
    factor = torch.clamp(1.0 / norm, max=1.0)
    variable.data -= factor * variable.grad
    emb.step(scale=factor)
    assert variable.item() == 0.5
    assert emb.lookup("user", torch.tensor([1])).tolist() == [[0.5, 0.5, 0.5, 1.0]]


def test_learning_rates_follow_schedules_by_step() -> None:
    asked = []

    def schedule(step: int) -> float:
        asked.append(step)
        return 2.0**-step

    emb = ml.Embeddings({"user": ml.Slot(1, initializer=ZEROS)}, SGD, learning_rate=schedule)
    for _ in range(3):
        train(emb, [1])
    assert asked == [0, 1, 2]
    assert weights(emb, 1) == [-1.75]
    emb({"user": torch.tensor([1])})["user"].sum().backward()
    emb.step(global_step=10)
    assert emb.global_step == 11
    assert weights(emb, 1) == [-1.75 - 2.0**-10]


def test_every_slice_learns_at_its_own_rate() -> None:
    parts = [ml.Slice(1, learning_rate=0.5), ml.Slice(1, learning_rate=lambda step: step + 0.25), ml.Slice(1)]
    emb = make(
        b=ml.Slot(1, initializer=ZEROS), user=ml.Slot(slices=parts, initializer=ZEROS), a=ml.Slot(2, initializer=ZEROS)
    )
    emb({"user": torch.tensor([1]), "a": torch.tensor([1]), "b": torch.tensor([1])}).concat().sum().backward()
    emb.step()
    assert emb.lookup("user", torch.tensor([1])).tolist() == [[-0.5, -0.25, -1.0]]
    assert weights(emb, 1, slot="a") == weights(emb, 1, slot="b") == [-1.0]


def test_warm_up_of_an_optimizer_counts_the_steps() -> None:
    emb = make(ml.row_optimizers.Sgd(learning_rate=1.0, warmup_steps=2))
    for _ in range(4):
        train(emb, [1])
    assert weights(emb, 1) == [-(0.0 + 0.5 + 1.0 + 1.0)]


def test_a_schedule_that_gives_no_rate_is_refused_by_the_names_of_its_slots() -> None:
    emb = ml.Embeddings({"user": ml.Slot(1), "item": ml.Slot(1)}, SGD, learning_rate=lambda step: float("nan"))
    emb({"user": torch.tensor([1]), "item": torch.tensor([1])})["user"].sum().backward()
    with pytest.raises(
        ValueError, match=r"slots 'user', 'item': the learning rate of step 0 must be a finite .* got nan"
    ):
        emb.step()
    assert emb.num_rows == 0


# Evaluation


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference_mode"])
def test_evaluation_leaves_no_trace(how: str) -> None:
    emb = make(user=ml.Slot(2, initializer=ZEROS, min_count=1))
    batch = {"user": torch.tensor([1, 2])}
    if how == "eval":
        emb.eval()
        x = emb(batch)
    else:
        with torch.no_grad() if how == "no_grad" else torch.inference_mode():
            x = emb(batch)
    assert not x["user"].requires_grad
    assert not x.concat().requires_grad
    assert (emb.num_rows, open_plans(emb)) == (0, 0)
    emb.train()
    train(emb, [1])
    assert emb.num_rows == 0, "the evaluation did not count as an occurrence"
    train(emb, [1])
    assert emb.num_rows == 1


def test_training_continues_after_evaluation_between_forward_and_backward() -> None:
    emb = make()
    loss = emb({"user": torch.tensor([1])})["user"].sum()
    emb.eval()
    assert emb({"user": torch.tensor([1])})["user"].tolist() == [[0.0, 0.0]]
    emb.train()
    loss.backward()
    emb.step()
    assert weights(emb, 1) == [-1.0]


def test_graphs_that_are_dropped_end_at_the_store() -> None:
    emb = make()
    for _ in range(5):
        emb({"user": torch.tensor([1])})
    assert open_plans(emb) <= 2
    train(emb, [1])
    gc.collect()
    train(emb, [1])
    assert open_plans(emb) == 0
    assert weights(emb, 1) == [-2.0]


def test_a_forward_pass_that_fails_half_way_leaves_no_plan_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: PooledBatch, values: torch.Tensor, *, pinned: bool) -> torch.Tensor:
        raise MemoryError("no room for the outputs")

    emb = make()
    with monkeypatch.context() as patch:
        patch.setattr(PooledBatch, "pool", fail)
        with pytest.raises(MemoryError):
            emb({"user": torch.tensor([1])})
    train(emb, [1])
    assert open_plans(emb) == 0


def test_discard_and_zero_grad_drop_gradients() -> None:
    emb = make()
    for drop in (emb.discard, emb.zero_grad):
        for _ in range(2):
            emb({"user": torch.tensor([1])})["user"].sum().backward()
        drop()
        with pytest.raises(FailedPreconditionError, match="no gradients since the last step"):
            emb.step()
    assert (emb.num_rows, open_plans(emb)) == (0, 0)
    train(emb, [1])
    assert weights(emb, 1) == [-1.0]


# Admission, expiry, time


def test_min_count_is_by_slot() -> None:
    emb = make(user=ml.Slot(2, min_count=2), item=ml.Slot(2))
    batch = {"user": torch.tensor([1]), "item": torch.tensor([1])}
    inserted = []
    for _ in range(4):
        emb(batch).concat().sum().backward()
        applied = emb.step()
        inserted.append((applied.inserted, applied.filtered))
    assert inserted == [(1, 1), (0, 1), (1, 0), (0, 0)]


def test_expiry_is_by_slot_and_counts_from_the_time_of_the_examples() -> None:
    emb = make(user=ml.Slot(2, expire_days=1), item=ml.Slot(2, expire_days=3))
    batch = {"user": torch.tensor([1, 2]), "item": torch.tensor([[1, 2], [2, 3]])}
    emb(batch, time=torch.tensor([0, DAY])).concat().sum().backward()
    emb.step()
    assert emb.evict(now=DAY) == 1, "user 1"
    assert emb.evict(now=3 * DAY) == 2, "user 2, item 1"
    assert emb.evict(now=4 * DAY - 1) == 0
    assert emb.evict(now=4 * DAY) == 2, "items 2 and 3 were seen on the second day"


@pytest.mark.parametrize("by_optimizer", [pytest.param(False, marks=pytest.mark.slow), True])
def test_steps_remove_rows_that_have_expired(by_optimizer: bool) -> None:
    emb = make(user=ml.Slot(2, expire_days=2), item=ml.Slot(2))
    optimizer, last = emb.optimizer(), dict[int, int]()
    for hour in range(0, 8 * 24, 3):
        users, time = [hour % 7, *range(1000 + 10 * hour, 1010 + 10 * hour)], 1_700_000_000 + hour * 3600
        emb({"user": torch.tensor(users), "item": torch.tensor(users)}, time=time).concat().sum().backward()
        optimizer.step() if by_optimizer else emb.step()
        last |= dict.fromkeys(users, time)
        left = {user for user, seen in last.items() if time - seen < 2 * DAY}
        late = {user for user, seen in last.items() if time - seen < 2 * DAY + 2 * 3600}
        assert left <= set(emb.vectors("user").ids.tolist()) <= late, "two hours for two days"
    assert emb.num_rows == len(last) + len(left)
    assert emb.store.stats().evicted >= len(last) - len(left) > 0
    assert not emb.lookup("user", torch.tensor([1000])).any()


def test_steps_remove_nothing_if_they_are_not_to() -> None:
    emb = ml.Embeddings({"user": ml.Slot(2, expire_days=1)}, evict_every_seconds=0)
    for day in range(5):
        emb({"user": torch.tensor([day])}, time=day * DAY)["user"].sum().backward()
        emb.step()
    assert (emb.num_rows, emb.evict()) == (5, 4)


def test_accumulated_batches_keep_their_times() -> None:
    emb = make(user=ml.Slot(2, expire_days=1))
    for key, time in ((1, 0), (2, DAY)):
        emb({"user": torch.tensor([key])}, time=time)["user"].sum().backward()
    emb.step()
    assert emb.evict(now=DAY) == 1
    assert emb.evict() == 0, "None is the newest time trained on"
    assert emb.evict(now=2 * DAY) == 1


def test_without_a_time_rows_are_as_old_as_the_step() -> None:
    emb = make(user=ml.Slot(2, expire_days=1))
    train(emb, [1])
    assert emb.evict(now=1_700_000_000) == 0


# Plans


def test_a_batch_may_be_planned_ahead_in_another_thread() -> None:
    emb = make()
    planned: list[ml.nn.PlannedBatch] = []
    thread = threading.Thread(target=lambda: planned.append(emb.plan({"user": torch.tensor([1, 1])}, time=5)))
    thread.start()
    thread.join()
    assert planned[0].num_examples == 2
    emb(planned[0])["user"].sum().backward()
    emb.step()
    assert weights(emb, 1) == [-2.0]


def test_a_plan_is_trained_on_once_and_evaluated_as_often_as_wanted() -> None:
    emb = make()
    planned = emb.plan({"user": torch.tensor([1])})
    x = emb(planned)
    with pytest.raises(FailedPreconditionError, match="this planned batch is being trained on already"):
        emb(planned)
    x["user"].sum().backward()
    emb.step()
    with pytest.raises(FailedPreconditionError, match="was applied already; make a new one"):
        emb(planned)
    with torch.no_grad():
        assert emb(planned)["user"].tolist() == [[-1.0, -1.0]]
    assert open_plans(emb) == 0


def test_a_stamped_batch_is_applied_once() -> None:
    emb = make()
    for expected in (False, True):
        stamp = BatchStamp(worker=3, seq=0, position=b"offset 17", event_time_ms=9)
        emb({"user": torch.tensor([1])}, stamp=stamp)["user"].sum().backward()
        assert emb.step().duplicate is expected
    assert weights(emb, 1) == [-1.0]
    cut = emb.store.cut()
    assert cut.applied[0].stamps[3].position == b"offset 17"
    cut.release()


def test_a_model_reads_rows_as_their_table_does_at_the_same_step() -> None:
    """A quantiser of training depends on the step; it was taken from the number of updates once."""
    emb = ml.Embeddings({"user": ml.Slot(2, compressor=ml.compressors.OneBit(step_size=10))})
    emb({"user": torch.tensor([7])})["user"].sum().backward()
    emb.step(global_step=100_000)
    assert isinstance(emb.store, LocalStore)
    (table,) = (TableGroup.of_store(emb.store)[name] for name in emb.tables)
    assert emb.global_step == 100_001
    at_step, early = (table.lookup(table.ids(), step=step) for step in (100_001, 1))
    assert not torch.equal(at_step, early)
    assert torch.equal(emb.lookup("user", torch.tensor([7])), at_step)
    assert torch.equal(emb({"user": torch.tensor([7])})["user"].detach(), at_step)


def test_delay_compensation_uses_the_rows_that_the_pass_read() -> None:
    """g + lambda * g^2 * (w - seen): one worker reads, another one learns, then the first one learns."""
    rule = ml.row_optimizers.DelayCompensated(ml.row_optimizers.Sgd(learning_rate=1.0), 0.5)
    slots = {"user": ml.Slot(1, initializer=ml.initializers.Zeros()), "item": ml.Slot(1, optimizer=rule)}
    slow = ml.Embeddings(slots, ml.row_optimizers.Sgd(learning_rate=1.0))
    quick = ml.Embeddings(slots, ml.row_optimizers.Sgd(learning_rate=1.0), store=slow.store)
    quick.join(1)
    batch = {"user": torch.tensor([1, 2]), "item": torch.tensor([3, 3])}
    quick(batch).concat().sum().backward()
    quick.step()  # the rows exist
    before = {name: slow.lookup(name, batch[name][:1]).item() for name in slots}
    passed = slow(batch).concat().sum()
    quick(batch).concat().sum().backward()
    quick.step()
    passed.backward()
    slow.step()
    # Users learn 1 twice. Items have the gradient 2 of two ids: 2 by the quick one, then 2 + 0.5 * 4 * (-2) = -2.
    assert slow.lookup("user", torch.tensor([1])).item() == pytest.approx(before["user"] - 2.0)
    assert slow.lookup("item", torch.tensor([3])).item() == pytest.approx(before["item"] - 2.0 + 2.0)


def test_planned_batches_take_no_time_or_stamp_of_their_own() -> None:
    emb = make()
    with pytest.raises(TypeError, match="give them to plan"):
        emb(emb.plan({"user": torch.tensor([1])}), time=3)


# With the rest of torch


def test_gradients_of_gradients_are_refused() -> None:
    emb = make(user=ml.Slot(2))
    factor = torch.ones(2, requires_grad=True)
    outputs = emb({"user": torch.tensor([1])})["user"] * factor
    (gradient,) = torch.autograd.grad(outputs.sum(), emb.anchor, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()  # type: ignore[no-untyped-call]  # torch gives it no types
    emb.discard()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, while it traces
def test_a_compiled_model_trains_like_an_eager_one() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.emb = make(user=ml.Slot(4), item=ml.Slot(4))
            self.head = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            x = self.emb(batch)
            logit: torch.Tensor = self.head(x.concat()).squeeze(1) + (x["user"] * x["item"]).sum(1)
            return logit

    batch = {"user": torch.arange(8), "item": torch.arange(8) % 3}
    losses = []
    for compiled in (False, True):
        model = Model()
        call = torch.compile(model, backend="aot_eager") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = call(batch).square().sum() + call(batch).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.emb.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_it_has_no_weights_and_prints_its_slots() -> None:
    emb = make(user=ml.Slot(2), tags=ml.Slot(3, combiner="mean"))
    (anchor,) = emb.parameters()
    assert (anchor.shape, list(emb.state_dict())) == ((1,), ["_extra_state", "embedding_rows"])
    assert repr(emb).splitlines()[1:3] == [
        "  user: dim=2, combiner=ReduceSum(), table='2-sgd'",
        "  tags: dim=3, combiner=ReduceMean(), table='3-sgd'",
    ]


def test_seeds_make_runs_repeat_and_differ() -> None:
    rows = []
    for seed in (1, 1, 2):
        emb = ml.Embeddings({"user": ml.Slot(4)}, SGD, seed=seed)
        train(emb, [1])
        rows.append(emb.lookup("user", torch.tensor([1])).tolist())
    assert rows[0] == rows[1] != rows[2]


def test_lookup_reads_rows_of_any_shape_and_names_unknown_slots() -> None:
    emb = make()
    train(emb, [1])
    assert emb.lookup("user", torch.tensor([[1, 2]])).tolist() == [[[-1.0, -1.0], [0.0, 0.0]]]
    assert emb.lookup("user", torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3, 2)
    with pytest.raises(ValueError, match=r"slot 'usr' does not exist; the slots are \['user'\]"):
        emb.lookup("usr", torch.tensor([1]))


def test_threads_can_train_and_look_up_concurrently() -> None:
    """Backward and forward of several threads meet in one ledger; SGD with ones counts occurrences exactly."""
    emb = ml.Embeddings({"user": ml.Slot(2, initializer=ZEROS)}, SGD, accumulated_passes=90)
    errors = []

    def work() -> None:
        try:
            for _ in range(30):
                emb({"user": torch.tensor([1, 2])})["user"].sum().backward()
                emb.lookup("user", torch.tensor([1]))
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    emb.step()
    assert weights(emb, 1, 2) == [-90.0, -90.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_outputs_live_where_the_module_is() -> None:
    emb = make(user=ml.Slot(2, initializer=ZEROS), item=ml.Slot(2, initializer=ZEROS)).to("cuda")
    x = emb({"user": torch.tensor([1, 1]), "item": torch.tensor([2, 3])})
    assert x["user"].device.type == x.concat().device.type == "cuda"
    (x["user"].sum() + x.concat().sum()).backward()
    emb.step()
    assert weights(emb, 1) == [-4.0]
    assert weights(emb, 2, slot="item") == [-1.0]


def test_outputs_go_where_the_module_goes() -> None:
    """The meta device stands for a GPU: it has no values, so only the way there can be seen."""
    emb = make().to("meta")
    x = emb({"user": torch.tensor([1, 1])})
    assert x["user"].device.type == "meta"
