"""What a store answers to a worker whose batches are misshapen, repeated, lost, or of a former incarnation."""

from __future__ import annotations

import pytest
import torch

from contracts.engines import StoreFactory
from contracts.one_worker import ONE_TABLE, Worker, rows_of, rule, stamp
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import NOTHING_APPLIED, Segment, Store, TableConfig, Update
from monolith.tables.row_optimizers import Adagrad, DelayCompensated, Sgd

TWO_TABLES = {"item": TableConfig([Segment(1)]), "user": TableConfig([Segment(2), Segment(1)])}


def test_it_is_a_store(new_store: StoreFactory) -> None:
    assert isinstance(new_store(ONE_TABLE), Store)


def test_schema_lists_tables_by_name(new_store: StoreFactory) -> None:
    store = new_store(TWO_TABLES)
    assert store.schema.names == ("item", "user")
    assert store.schema.dims == (1, 3)
    assert store.schema.num_segments == 3
    assert new_store(dict(reversed(TWO_TABLES.items()))).schema.digest == store.schema.digest


def test_absent_ids_read_zeros_and_reading_inserts_nothing(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    assert rows_of(store, [1, 2]) == [[0.0, 0.0], [0.0, 0.0]]
    assert store.stats().rows == 0


@pytest.mark.parametrize("rate", [-0.5, float("nan"), float("inf")])
def test_a_learning_rate_that_is_none_is_refused(new_store: StoreFactory, rate: float) -> None:
    store = new_store(ONE_TABLE)
    session = store.join(0)
    plan = session.plan(torch.tensor([5]), torch.tensor([0, 1]), stamp=stamp(0))
    how = Update(previous=NOTHING_APPLIED, step=0, learning_rates=torch.tensor([rate]), times=0)
    with pytest.raises(InvalidArgumentError, match="learning rates must be finite and >= 0, got"):
        session.apply([(plan, torch.ones(2))], how).result()
    assert store.stats().rows == 0


def test_finite_gradients_of_two_plans_whose_sum_is_not_are_refused(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    session = store.join(0)
    plans = [session.plan(torch.tensor([5]), torch.tensor([0, 1]), stamp=stamp(seq)) for seq in range(2)]
    how = Update(previous=NOTHING_APPLIED, step=0, learning_rates=torch.ones(1), times=0, known_finite=True)
    with pytest.raises(InvalidArgumentError, match=r"of id 5 .*is not finite"):
        session.apply([(plan, torch.full((2,), 3e38)) for plan in plans], how).result()
    assert store.stats().rows == 0


# Plans


def test_plan_lists_each_id_once_with_its_count(new_store: StoreFactory) -> None:
    store = new_store(TWO_TABLES)
    plan = store.plan(torch.tensor([5, 6, 5, 5, 7]), torch.tensor([0, 3, 5]), stamp=stamp(0))
    assert plan.unique_ids[plan.inverse.long()].tolist() == [5, 6, 5, 5, 7]
    found = zip(plan.tables.tolist(), plan.unique_ids.tolist(), plan.counts.tolist(), strict=True)
    assert sorted(found) == [(0, 5, 2), (0, 6, 1), (1, 5, 1), (1, 7, 1)]
    assert plan.splits.shape == (1024 * 2 + 1,)
    assert (plan.splits[0].item(), plan.splits[-1].item()) == (0, 4)
    assert plan.num_values == 1 + 1 + 3 + 3
    assert plan.stamp == stamp(0)


@pytest.mark.parametrize("splits", [[0, 1], [1, 2, 3], [0, 2, 1], [0, 2, 4], [0, 0, 0, 3]])
def test_splits_that_do_not_fit_the_ids_are_refused(new_store: StoreFactory, splits: list[int]) -> None:
    store = new_store(TWO_TABLES)
    with pytest.raises(InvalidArgumentError, match="table_splits must"):
        store.plan(torch.tensor([1, 2, 3]), torch.tensor(splits), stamp=stamp(0))


def test_a_plan_of_another_store_is_refused(new_store: StoreFactory) -> None:
    ours, other = new_store(ONE_TABLE), new_store(ONE_TABLE)
    plan = Worker(other).plan([1], 0)
    with pytest.raises(InvalidArgumentError, match="this store's plan"):
        ours.read(plan, step=0)
    with pytest.raises(InvalidArgumentError, match="this store's plan"):
        Worker(ours).push(plan)


def test_a_plan_of_another_worker_is_refused(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    mine, others = Worker(store, 1), Worker(store, 2)
    with pytest.raises(InvalidArgumentError, match="another worker"):
        mine.push(others.plan([1], 0))
    with pytest.raises(InvalidArgumentError, match="another worker"):
        mine.session.read(others.plan([1], 0), after=-1, step=0, train=False)
    with pytest.raises(InvalidArgumentError, match="another worker"):
        mine.session.plan(torch.tensor([1]), torch.tensor([0, 1]), stamp=stamp(0, 2))


def test_a_discarded_plan_ends_there(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    plan = worker.plan([1], 0)
    worker.session.read(plan, after=-1, step=0, train=True).result()
    assert store.stats().open_plans == 1
    worker.session.discard(plan)
    assert store.stats().open_plans == 0
    with pytest.raises(FailedPreconditionError, match="discarded"):
        worker.push(plan)
    with pytest.raises(FailedPreconditionError, match="discarded already"):
        worker.session.discard(plan)
    with pytest.raises(FailedPreconditionError, match="discarded already"):
        worker.session.read(plan, after=-1, step=0, train=True).result()
    assert store.stats().rows == 0


def test_an_applied_plan_cannot_be_discarded(new_store: StoreFactory) -> None:
    worker = Worker(new_store(ONE_TABLE))
    plan = worker.plan([1], 0)
    worker.push(plan)
    with pytest.raises(FailedPreconditionError, match="applied already"):
        worker.session.discard(plan)


# Updates


def test_an_empty_plan_counts_as_a_batch(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    assert worker.train([]).updated == 0
    assert worker.session.flush(timeout_seconds=60) == 0
    assert store.stats().applied == {0: 0}


def test_the_same_batch_is_applied_once(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1])
    repeated = worker.plan([1], 0)
    worker.session.read(repeated, after=0, step=0, train=True).result()
    result = worker.push(repeated, previous=-1)
    assert (result.duplicate, result.updated) == (True, 0)
    assert worker.push(repeated, previous=-1).duplicate
    assert rows_of(store, [1]) == [[-1.0, -1.0]]
    assert store.stats().open_plans == 0


def test_workers_have_sequences_of_their_own(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    workers = [Worker(store, number) for number in (0, 7)]
    for _ in range(3):
        assert not any(worker.train([1]).duplicate for worker in workers)
    workers[1].train([1])
    assert rows_of(store, [1]) == [[-7.0, -7.0]]
    assert store.stats().applied == {0: 2, 7: 3}
    assert [worker.session.flush(timeout_seconds=60) for worker in workers] == [2, 3]


def test_several_plans_are_one_optimizer_step(new_store: StoreFactory) -> None:
    config = {"user": TableConfig([Segment(2, optimizer=Adagrad(initial_accumulator_value=0.0))])}
    store = new_store(config)
    worker = Worker(store)
    plans = [worker.plan([1, 2], 0), worker.plan([2, 3], 1)]
    result = worker.session.apply([(plan, torch.full((4,), 2.0)) for plan in plans], rule(-1)).result()
    assert result.updated == 3
    # one step of the summed gradient: any size of it gives a step of 1 from an empty accumulator
    assert rows_of(store, [1, 2, 3]) == [[-1.0, -1.0]] * 3
    assert store.stats().applied == {0: 1}


def test_an_update_of_which_a_part_was_applied_is_refused(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1])
    plans = [worker.plan([1], 0), worker.plan([1], 1)]
    with pytest.raises(FailedPreconditionError, match="applied before"):
        worker.session.apply([(plan, torch.ones(2)) for plan in plans], rule(0)).result()
    assert rows_of(store, [1]) == [[-1.0, -1.0]]


def test_batches_that_were_discarded_leave_no_gap(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.push(worker.plan([1], 3))
    worker.session.discard(worker.plan([1], 4))
    worker.push(worker.plan([1], 9))
    assert rows_of(store, [1]) == [[-2.0, -2.0]]


@pytest.mark.parametrize("previous", [-1, 3, 5, 6])
def test_a_push_that_got_lost_is_noticed(new_store: StoreFactory, previous: int) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.push(worker.plan([1], 4))
    plan = worker.plan([1], 7)
    with pytest.raises(FailedPreconditionError, match=r"worker 0: batch 7 names .* last one applied here is 4"):
        worker.push(plan, previous=previous)
    assert rows_of(store, [1]) == [[-1.0, -1.0]]
    assert store.stats().applied == {0: 4}
    worker.push(plan, previous=4)
    assert store.stats().applied == {0: 7}


def test_the_rows_as_the_worker_saw_them_correct_its_gradient(new_store: StoreFactory) -> None:
    delayed = TableConfig([Segment(2, optimizer=DelayCompensated(Sgd(), 0.5))])
    store = new_store({"plain": ONE_TABLE["user"], "user": delayed})
    worker = store.join(0)
    ids, splits = torch.tensor([1, 1]), torch.tensor([0, 1, 2])
    rates = torch.ones(2)
    first = worker.plan(ids, splits, stamp=stamp(0))
    worker.apply(
        [(first, torch.ones(4))], Update(previous=-1, step=0, learning_rates=rates, times=0, latest=[torch.zeros(2)])
    ).result()
    second = worker.plan(ids, splits, stamp=stamp(1))
    seen = torch.tensor([0.0, -1.0])  # of the table that asks for it alone
    late = Update(previous=0, step=1, learning_rates=rates, times=0, latest=[seen])
    worker.apply([(second, torch.ones(4))], late).result()
    # w = -1; g + lambda * g^2 * (w - seen) is 1 - 0.5 for the first weight, and 1 for the second
    values = store.read(second, step=2).result().values.cpu().reshape(2, 2)
    assert values[second.tables == 1].tolist() == [[-1.5, -2.0]]
    assert values[second.tables == 0].tolist() == [[-2.0, -2.0]]
    with pytest.raises(InvalidArgumentError, match="latest must have"):
        worker.apply(
            [(worker.plan(ids, splits, stamp=stamp(2)), torch.ones(4))],
            Update(previous=1, step=2, learning_rates=rates, times=0, latest=[torch.zeros(4)]),
        ).result()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_refused_update_leaves_rows_stamps_and_plan_as_they_were(new_store: StoreFactory, bad: float) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1])
    plan = worker.plan([1, 4], 1)
    gradient = torch.ones(4)
    gradient[3] = bad
    with pytest.raises(InvalidArgumentError, match="is not finite"):
        worker.session.apply([(plan, gradient)], rule(0)).result()
    assert rows_of(store, [1, 4]) == [[-1.0, -1.0], [0.0, 0.0]]
    assert worker.session.flush(timeout_seconds=60) == 0
    worker.push(plan)
    assert rows_of(store, [1, 4]) == [[-2.0, -2.0], [-1.0, -1.0]]


def test_wrong_shapes_are_refused(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    plan = worker.plan([1], 0)
    with pytest.raises(InvalidArgumentError, match=r"gradient must have shape \(2,\), got \(3,\)"):
        worker.session.apply([(plan, torch.ones(3))], rule(-1)).result()
    with pytest.raises(InvalidArgumentError, match="learning_rates must have"):
        worker.session.apply([(plan, torch.ones(2))], rule(-1, segments=2)).result()
    with pytest.raises(InvalidArgumentError, match="one or more plans"):
        worker.session.apply([], rule(-1)).result()
    with pytest.raises(InvalidArgumentError, match="each once"):
        worker.session.apply([(plan, torch.ones(2)), (plan, torch.ones(2))], rule(-1)).result()
    assert store.stats().rows == 0


# Reading


def test_reading_after_a_batch_that_was_not_pushed_is_refused(new_store: StoreFactory) -> None:
    worker = Worker(new_store(ONE_TABLE))
    with pytest.raises(
        FailedPreconditionError, match="cannot read after batch 3 of worker 0: its last applied batch is -1"
    ):
        worker.session.read(worker.plan([1], 0), after=3, step=0, train=False).result()


def test_rows_report_which_batch_of_their_worker_they_contain(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    ours, others = Worker(store, 0), Worker(store, 1)
    for _ in range(2):
        ours.train([1])
    others.train([1])
    assert ours.session.read(ours.plan([1], 2), after=1, step=0, train=False).result().seen == 1
    assert others.session.read(others.plan([1], 2), after=-1, step=0, train=False).result().seen == 0
    assert store.read(ours.plan([1], 2), step=0).result().seen == NOTHING_APPLIED


# Incarnations


def test_a_rejoining_worker_resumes_after_the_last_applied_batch(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    first = Worker(store, 3)
    assert (first.session.worker, first.session.applied, first.session.next_seq) == (3, None, 0)
    first.push(first.plan([1], 5))
    again = Worker(store, 3)
    assert (again.session.applied, again.session.next_seq) == (stamp(5, 3), 6)
    assert (set(first.session.applied_by_server), set(again.session.applied_by_server)) == ({None}, {stamp(5, 3)})
    assert (first.session.applied, first.session.next_seq) == (None, 0)  # when it joined
    again.train([1])
    assert rows_of(store, [1]) == [[-2.0, -2.0]]


def test_a_former_incarnation_is_refused_and_others_are_not(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    former, other = Worker(store, 0), Worker(store, 1)
    former.train([1])
    plan = former.plan([1], 1)
    former.session.read(plan, after=0, step=0, train=True).result()
    present = Worker(store, 0)
    for call in (
        lambda: former.push(plan),
        lambda: former.session.flush(timeout_seconds=1),
        lambda: former.session.evict(now=0),
        former.session.cut,
        lambda: former.session.read(former.plan([1], 2), after=0, step=0, train=True).result(),
    ):
        with pytest.raises(FailedPreconditionError, match="join again"):
            call()
    assert former.session.read(plan, after=0, step=0, train=False).result().values.cpu().tolist() == [-1.0, -1.0]
    former.session.discard(plan)
    assert store.stats().open_plans == 0
    present.train([1])
    other.train([1])
    assert rows_of(store, [1]) == [[-3.0, -3.0]]


def test_a_repeated_push_of_a_former_incarnation_is_refused_too(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    former = Worker(store)
    former.train([1])
    repeated = former.plan([1], 0)
    Worker(store)
    with pytest.raises(FailedPreconditionError, match="join again"):
        former.push(repeated, previous=-1)


def test_workers_have_numbers_from_0(new_store: StoreFactory) -> None:
    with pytest.raises(InvalidArgumentError, match="worker must be >= 0, got -1"):
        new_store(ONE_TABLE).join(-1)


def test_closing_twice_is_harmless(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    store.close()
    store.close()
