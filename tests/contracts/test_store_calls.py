"""What a store answers to calls in the wrong order, of the wrong shape or repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from monolith.tables import Segment, TableConfig
from monolith.tables.row_block import RowBlock
from monolith.tables.row_optimizers import Adagrad, Sgd
from monolith.tables.store import BatchStamp, Mark, Plan, Store, Update

StoreFactory = Callable[[Mapping[str, TableConfig]], Store]

ONE_TABLE = {"user": TableConfig([Segment(2, optimizer=Sgd())])}
TWO_TABLES = {"item": TableConfig([Segment(1)]), "user": TableConfig([Segment(2), Segment(1)])}
ALL = range(1024)


def stamp(seq: int, worker: int = 0) -> BatchStamp:
    return BatchStamp(worker=worker, seq=seq)


def rule(seq: int, segments: int = 1, scale: float = 1.0) -> Update:
    return Update(seq=seq, step=seq, learning_rates=torch.ones(segments), times=0, scale=scale)


def plan_of(store: Store, ids: Sequence[int], seq: int, worker: int = 0) -> Plan:
    return store.plan(torch.tensor(ids, dtype=torch.int64), torch.tensor([0, len(ids)]), stamp=stamp(seq, worker))


def train(store: Store, ids: Sequence[int], seq: int, value: float = 1.0) -> None:
    plan = plan_of(store, ids, seq)
    values = store.read(plan, after=seq - 1, train=True).result().values
    store.apply([(plan, torch.full_like(values, value))], rule(seq)).result()


def rows_of(store: Store, ids: Sequence[int]) -> list[list[float]]:
    plan = plan_of(store, ids, 10**6)
    values = store.read(plan, after=-1, train=False).result().values
    rows: list[list[float]] = values.reshape(-1, 2)[plan.inverse.long()].tolist()
    return rows


def test_it_is_a_store(make_store: StoreFactory) -> None:
    assert isinstance(make_store(ONE_TABLE), Store)


def test_absent_ids_read_zeros_and_reading_inserts_nothing(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    assert rows_of(store, [1, 2]) == [[0.0, 0.0], [0.0, 0.0]]
    assert store.stats().rows == 0


def test_plan_lists_each_id_once_with_its_count(make_store: StoreFactory) -> None:
    store = make_store(TWO_TABLES)
    plan = store.plan(torch.tensor([5, 6, 5, 5, 7]), torch.tensor([0, 3, 5]), stamp=stamp(0))
    assert plan.unique_ids[plan.inverse.long()].tolist() == [5, 6, 5, 5, 7]
    assert sorted(zip(plan.unique_ids.tolist(), plan.counts.tolist(), strict=True)) == [(5, 1), (5, 2), (6, 1), (7, 1)]
    assert plan.splits.shape == (1024 * 2 + 1,)
    assert (plan.splits[0].item(), plan.splits[-1].item()) == (0, 4)
    assert plan.stamp == stamp(0)


def test_an_empty_plan_keeps_the_order_of_updates(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    plan = plan_of(store, [], 0)
    assert store.read(plan, after=-1, train=True).result().values.shape == (0,)
    assert store.apply([(plan, torch.zeros(0))], rule(0)).result().updated == 0
    assert store.flush(timeout_seconds=1) == 0
    cut = store.cut(seq=0)
    assert cut.applied == {0: stamp(0)}
    cut.release()


def test_the_same_stamp_is_applied_once(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    train(store, [1], 0)
    retried = plan_of(store, [1], 0)
    store.read(retried, after=0, train=True).result()
    result = store.apply([(retried, torch.ones(2))], rule(0)).result()
    assert result.duplicate
    assert result.updated == 0
    assert rows_of(store, [1]) == [[-1.0, -1.0]]
    assert store.stats().open_plans == 0


def test_workers_have_sequences_of_their_own(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    for worker in (0, 1):
        plan = plan_of(store, [1], 0, worker)
        assert not store.apply([(plan, torch.ones(2))], rule(worker)).result().duplicate
    assert rows_of(store, [1]) == [[-2.0, -2.0]]


def test_several_plans_are_one_optimizer_step(make_store: StoreFactory) -> None:
    config = {"user": TableConfig([Segment(2, optimizer=Adagrad(initial_accumulator_value=0.0))])}
    store = make_store(config)
    plans = [plan_of(store, [1, 2], 0), plan_of(store, [2, 3], 1)]
    result = store.apply([(plan, torch.full((4,), 2.0)) for plan in plans], rule(0)).result()
    assert result.updated == 3
    # one step of the summed gradient: any size of it gives a step of 1 from an empty accumulator
    assert rows_of(store, [1, 2, 3]) == [[-1.0, -1.0]] * 3


def test_a_partly_repeated_update_is_refused(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    train(store, [1], 0)
    plans = [plan_of(store, [1], 0), plan_of(store, [1], 1)]
    with pytest.raises(FailedPreconditionError, match="applied before"):
        store.apply([(plan, torch.ones(2)) for plan in plans], rule(1)).result()
    assert rows_of(store, [1]) == [[-1.0, -1.0]]


def test_reading_after_a_future_update_is_refused(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    with pytest.raises(FailedPreconditionError, match=r"after update 3, but the last one applied is -1"):
        store.read(plan_of(store, [1], 0), after=3, train=False).result()


def test_rows_say_which_update_they_contain(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    train(store, [1], 0)
    train(store, [1], 1)
    assert store.read(plan_of(store, [1], 2), after=1, train=False).result().seen_seq == 1


def test_a_discarded_plan_ends_there(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    plan = plan_of(store, [1], 0)
    store.read(plan, after=-1, train=True).result()
    assert store.stats().open_plans == 1
    store.discard(plan)
    assert store.stats().open_plans == 0
    with pytest.raises(FailedPreconditionError, match="discarded"):
        store.apply([(plan, torch.ones(2))], rule(0)).result()
    with pytest.raises(FailedPreconditionError, match="discarded already"):
        store.discard(plan)
    with pytest.raises(FailedPreconditionError, match="discarded already"):
        store.read(plan, after=-1, train=True).result()
    assert store.stats().rows == 0


def test_an_applied_plan_cannot_be_discarded(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    plan = plan_of(store, [1], 0)
    store.apply([(plan, torch.ones(2))], rule(0)).result()
    with pytest.raises(FailedPreconditionError, match="applied already"):
        store.discard(plan)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_refused_update_leaves_rows_stamps_and_plan_as_they_were(make_store: StoreFactory, bad: float) -> None:
    store = make_store(ONE_TABLE)
    train(store, [1], 0)
    plan = plan_of(store, [1, 4], 1)
    gradient = torch.ones(4)
    gradient[3] = bad
    with pytest.raises(InvalidArgumentError, match="is not finite"):
        store.apply([(plan, gradient)], rule(1)).result()
    assert rows_of(store, [1, 4]) == [[-1.0, -1.0], [0.0, 0.0]]
    assert store.flush(timeout_seconds=1) == 0
    assert not store.apply([(plan, torch.ones(4))], rule(1)).result().duplicate


def test_an_update_of_the_wrong_shape_is_refused(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    plan = plan_of(store, [1], 0)
    with pytest.raises(InvalidArgumentError, match=r"gradient must have shape \(2,\), got \(3,\)"):
        store.apply([(plan, torch.ones(3))], rule(0)).result()
    with pytest.raises(InvalidArgumentError, match="learning_rates must have"):
        store.apply([(plan, torch.ones(2))], rule(0, segments=2)).result()
    with pytest.raises(InvalidArgumentError, match="one or more plans"):
        store.apply([], rule(0)).result()
    assert store.stats().rows == 0


@pytest.mark.parametrize("splits", [[0, 1], [1, 2, 3], [0, 2, 1], [0, 2, 4], [0, 0, 0, 3]])
def test_splits_that_do_not_fit_the_ids_are_refused(make_store: StoreFactory, splits: list[int]) -> None:
    store = make_store(TWO_TABLES)
    with pytest.raises(InvalidArgumentError, match="table_splits must"):
        store.plan(torch.tensor([1, 2, 3]), torch.tensor(splits), stamp=stamp(0))


def test_a_cut_is_the_state_after_the_update_it_names(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    train(store, [1], 0)
    with pytest.raises(FailedPreconditionError, match=r"cut: .* after update 1, but the last one applied is 0"):
        store.cut(seq=1)
    train(store, [1], 1)
    with pytest.raises(FailedPreconditionError, match=r"cut: .* update 1 is already in the rows"):
        store.cut(seq=0)
    with pytest.raises(FailedPreconditionError, match="evict: "):
        store.evict(now=0, seq=0)
    cut = store.cut(seq=1)
    train(store, [1, 2], 2)
    (block,) = [block for block in cut.blocks(ALL, state=True) if block.count]
    assert block.keys.tolist() == [1]
    assert block.weights(2).tolist() == [[-2.0, -2.0]]
    assert cut.seq == 1
    cut.release()
    cut.release()


def test_only_one_cut_is_open_at_a_time(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    cut = store.cut(seq=-1)
    with pytest.raises(FailedPreconditionError):
        store.cut(seq=-1)
    cut.release()
    store.cut(seq=-1).release()


def test_marks_of_another_generation_are_refused(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    mark = store.mark()
    store.resume(seq=4, applied={0: stamp(4)}, generation=1)
    with pytest.raises(FailedPreconditionError, match="generation 0"):
        store.changes(since=mark, state=True)
    assert store.flush(timeout_seconds=1) == 4
    assert store.apply([(plan_of(store, [1], 4), torch.ones(2))], rule(5)).result().duplicate


def test_changes_are_what_was_written_after_the_mark(make_store: StoreFactory) -> None:
    store = make_store(ONE_TABLE)
    train(store, [1, 2], 0)
    mark = store.mark()
    train(store, [2, 3], 1)
    changed = [key for block in store.changes(since=mark, state=True) for key in block.keys.tolist()]
    assert sorted(changed) == [2, 3]
    everything = [key for block in store.changes(since=Mark(0, 0), state=True) for key in block.keys.tolist()]
    assert sorted(everything) == [1, 2, 3]


def test_serving_blocks_carry_weights_without_state(make_store: StoreFactory) -> None:
    store = make_store({"user": TableConfig([Segment(2, optimizer=Adagrad())])})
    train(store, [1], 0)
    (block,) = store.changes(since=Mark(0, 0), state=False)
    assert block.row_bytes == 8


def loaded_blocks(store: Store, seq: int) -> list[RowBlock]:
    cut = store.cut(seq=seq)
    blocks = list(cut.blocks(ALL, state=True))
    cut.release()
    return blocks


def test_load_takes_only_the_buckets_asked_for(make_store: StoreFactory) -> None:
    source, target = make_store(ONE_TABLE), make_store(ONE_TABLE)
    train(source, list(range(200)), 0)
    blocks = loaded_blocks(source, 0)
    report = target.load(blocks, buckets=range(512), replace=False)
    inside = sum(block.count for block in blocks if block.bucket < 512)
    assert (report.rows, report.ignored) == (inside, 200 - inside)
    assert target.stats().rows == inside


def test_load_with_replace_empties_the_buckets_first(make_store: StoreFactory) -> None:
    source, target = make_store(ONE_TABLE), make_store(ONE_TABLE)
    train(source, [1, 2], 0)
    train(target, [2, 3], 0, value=5.0)
    target.load(loaded_blocks(source, 0), buckets=ALL, replace=True)
    assert rows_of(target, [1, 2, 3]) == [[-1.0, -1.0], [-1.0, -1.0], [0.0, 0.0]]
    assert target.stats().rows == 2


@pytest.mark.parametrize("replace", [False, True])
def test_a_damaged_block_changes_nothing(make_store: StoreFactory, *, replace: bool) -> None:
    source, target = make_store(ONE_TABLE), make_store(ONE_TABLE)
    train(source, [1, 2], 0)
    train(target, [2, 3], 0, value=5.0)
    blocks = loaded_blocks(source, 0)
    damaged = bytearray(blocks[-1].data)
    damaged[56] ^= 1
    with pytest.raises(DataLossError):
        target.load([*blocks[:-1], RowBlock(bytes(damaged))], buckets=ALL, replace=replace)
    assert rows_of(target, [1, 2, 3]) == [[0.0, 0.0], [-5.0, -5.0], [-5.0, -5.0]]


@pytest.mark.parametrize("replace", [False, True])
def test_rows_of_another_schema_change_nothing(make_store: StoreFactory, *, replace: bool) -> None:
    source = make_store({"user": TableConfig([Segment(2, optimizer=Adagrad())])})
    target = make_store(ONE_TABLE)
    train(source, [1], 0)
    train(target, [1], 0, value=5.0)
    with pytest.raises(FailedPreconditionError, match="schema"):
        target.load(loaded_blocks(source, 0), buckets=ALL, replace=replace)
    with pytest.raises(FailedPreconditionError, match="schema"):
        target.assign(loaded_blocks(source, 0)[0], add=False)
    assert rows_of(target, [1]) == [[-5.0, -5.0]]


def test_a_plan_of_another_store_is_refused(make_store: StoreFactory) -> None:
    ours, other = make_store(ONE_TABLE), make_store(ONE_TABLE)
    plan = plan_of(other, [1], 0)
    if ours.traits.remote or type(ours).__name__ == "ReferenceStore":
        pytest.skip("plans of this engine are plain values")
    with pytest.raises(InvalidArgumentError, match="this store's plan"):
        ours.read(plan, after=-1, train=False)


def test_schema_lists_tables_by_name(make_store: StoreFactory) -> None:
    store = make_store(TWO_TABLES)
    assert store.schema.names == ("item", "user")
    assert store.schema.dims == (1, 3)
    assert store.schema.num_segments == 3
    assert make_store(dict(reversed(TWO_TABLES.items()))).schema.digest == store.schema.digest
