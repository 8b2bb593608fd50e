"""One table: reading, writing, learning."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from monolith.errors import InvalidArgumentError
from monolith.tables import HashTable, Segment, TableConfig
from monolith.tables.initializers import Constant, Ones, RandomUniform
from monolith.tables.row_optimizers import Adagrad, Adam, DelayCompensated, Sgd

EXTREMES = [-(2**63), -1, 0, 1, 2**63 - 1]


def sgd_table(dim: int = 2, learning_rate: float = 1.0, **options: object) -> HashTable:
    return HashTable(TableConfig([Segment(dim, optimizer=Sgd(learning_rate=learning_rate))], **options))  # type: ignore[arg-type]


def test_lookup_of_unseen_id_leaves_the_table_unchanged() -> None:
    table = HashTable(TableConfig([Segment(3, initializer=Ones())]))
    assert table.lookup([5, 6]).tolist() == [[0.0] * 3] * 2
    assert len(table) == 0
    assert not table.contains([5]).any()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 3), (2, 0, 3), (1, 1, 1, 1)])
def test_results_have_the_shape_of_ids_and_a_last_dimension(shape: tuple[int, ...]) -> None:
    table = sgd_table(dim=4)
    ids = np.zeros(shape, np.int64)
    assert table.lookup(ids).shape == (*shape, 4)
    assert table.lookup(torch.from_numpy(ids)).shape == (*shape, 4)
    assert table.contains(ids).shape == shape
    assert table.lookup_rows(ids).time.shape == shape
    assert table.reinitialize(ids).shape == shape
    table.assign(ids, np.ones((*shape, 4), np.float32))
    table.apply_gradients(ids, np.ones((*shape, 4), np.float32))
    assert len(table) == min(1, ids.size)


def test_results_are_of_the_same_kind_as_the_input() -> None:
    table = sgd_table()
    for ids, kind in ((np.array([1]), np.ndarray), (torch.tensor([1]), torch.Tensor), ([1], torch.Tensor)):
        assert type(table.lookup(ids)) is kind
        assert type(table.contains(ids)) is kind
        assert all(type(part) is kind for part in table.lookup_rows(ids))
    assert table.lookup(np.array([1])).dtype == np.float32
    assert table.contains(torch.tensor([1])).dtype is torch.bool
    assert table.lookup(7).shape == (2,)


def test_every_int64_is_an_id_of_its_own() -> None:
    table = sgd_table(dim=1)
    rows = np.arange(1, len(EXTREMES) + 1, dtype=np.float32)[:, None]
    table.assign(EXTREMES, rows)
    assert table.lookup(EXTREMES).flatten().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert sorted(table.ids().tolist()) == EXTREMES


def test_assign_overwrites_and_the_last_duplicate_wins() -> None:
    table = sgd_table(dim=1)
    table.assign([3, 4, 3], [[1.0], [2.0], [9.0]])
    assert table.lookup([3, 4]).flatten().tolist() == [9.0, 2.0]


def test_assign_add_starts_from_the_initializer_and_adds_duplicates() -> None:
    table = HashTable(TableConfig([Segment(1, initializer=Constant(10.0))]))
    table.assign_add([3, 3], [[1.0], [2.0]])
    assert table.lookup([3]).item() == 13.0


def test_assign_keeps_the_optimizer_state() -> None:
    table = HashTable(TableConfig([Segment(1, optimizer=Adagrad(initial_accumulator_value=0.0))]))
    table.apply_gradients([1], [[3.0]])
    before = table.lookup_rows([1]).state.clone()
    table.assign([1], [[5.0]])
    assert torch.equal(table.lookup_rows([1]).state, before)


def test_the_first_update_starts_from_the_initializer() -> None:
    table = HashTable(TableConfig([Segment(2, initializer=Ones(), optimizer=Sgd(learning_rate=0.5))]))
    result = table.apply_gradients([1], [[1.0, 2.0]])
    assert table.lookup([1]).tolist() == [[0.5, 0.0]]
    assert (result.updated, result.inserted, result.filtered, result.skipped) == (1, 1, 0, 0)


def test_duplicates_are_summed_before_the_update() -> None:
    together = HashTable(TableConfig([Segment(1, optimizer=Adagrad(initial_accumulator_value=1.0))]))
    summed = HashTable(TableConfig([Segment(1, optimizer=Adagrad(initial_accumulator_value=1.0))]))
    together.apply_gradients([1, 2, 1], [[1.0], [5.0], [2.0]])
    summed.apply_gradients([1, 2], [[3.0], [5.0]])
    assert torch.equal(together.lookup([1, 2]), summed.lookup([1, 2]))


def test_without_dedup_every_occurrence_is_a_step() -> None:
    stepwise = HashTable(TableConfig([Segment(1, optimizer=Adagrad(initial_accumulator_value=1.0))]))
    one_by_one = HashTable(TableConfig([Segment(1, optimizer=Adagrad(initial_accumulator_value=1.0))]))
    result = stepwise.apply_gradients([1, 2, 1], [[1.0], [5.0], [2.0]], dedup=False)
    for key, gradient in ((1, 1.0), (2, 5.0), (1, 2.0)):
        one_by_one.apply_gradients([key], [[gradient]])
    assert torch.equal(stepwise.lookup([1, 2]), one_by_one.lookup([1, 2]))
    assert (result.updated, result.inserted) == (3, 2)


def test_each_segment_learns_with_its_own_optimizer_and_rate() -> None:
    table = HashTable(
        TableConfig([Segment(1, optimizer=Sgd(learning_rate=0.5)), Segment(2, optimizer=Sgd(learning_rate=0.25))])
    )
    table.apply_gradients([1], [[1.0, 1.0, 1.0]])
    assert table.lookup([1]).tolist() == [[-0.5, -0.25, -0.25]]
    table.apply_gradients([1], [[1.0, 1.0, 1.0]], learning_rates=[1.0, 0.0])
    assert table.lookup([1]).tolist() == [[-1.5, -0.25, -0.25]]
    table.apply_gradients([1], [[1.0, 1.0, 1.0]], learning_rates=torch.tensor([0.0, 1.0]))
    assert table.lookup([1]).tolist() == [[-1.5, -1.25, -1.25]]


def test_learning_rates_follow_the_warm_up_of_the_step() -> None:
    table = HashTable(TableConfig([Segment(1, optimizer=Sgd(learning_rate=1.0, warmup_steps=4))]))
    for step in range(3):
        table.apply_gradients([1], [[1.0]], step=step)
    assert table.lookup([1]).item() == -(0.0 + 0.25 + 0.5)


def test_lookup_rows_gives_weights_state_and_time() -> None:
    table = HashTable(TableConfig([Segment(2, optimizer=Adagrad(initial_accumulator_value=1.0)), Segment(1)]))
    table.apply_gradients([7], [[2.0, 0.0, 1.0]], time=1234)
    rows = table.lookup_rows(np.array([7, 8]))
    assert rows.found.tolist() == [True, False]
    assert rows.weights.shape == (2, 3)
    assert rows.state.shape == (2, 8)
    assert rows.state.view(np.float32).tolist() == [[5.0, 1.0], [0.0, 0.0]]
    assert rows.time.tolist() == [1234, 0]
    assert not rows.weights[1].any()


def test_time_may_differ_by_id_and_defaults_to_now() -> None:
    table = sgd_table(dim=1)
    table.assign([3], [[0.0]])
    assert table.lookup_rows([3]).time.item() > 1_600_000_000
    newest = table.newest_time + 3600
    table.apply_gradients([1, 2], [[1.0], [1.0]], time=np.array([5, newest]))
    assert table.lookup_rows([1, 2]).time.tolist() == [5, newest]
    assert table.newest_time == newest
    table.assign([1], [[0.0]], time=torch.tensor(8))
    assert table.lookup_rows([1]).time.item() == 8


def test_reinitialize_restarts_rows_and_reports_which_existed() -> None:
    table = HashTable(TableConfig([Segment(1, initializer=Ones(), optimizer=Adagrad(initial_accumulator_value=0.5))]))
    table.apply_gradients([1], [[3.0]])
    assert table.reinitialize(np.array([1, 2]), time=99).tolist() == [1, 0]
    rows = table.lookup_rows([1, 2])
    assert rows.weights.tolist() == [[1.0], [1.0]]
    assert rows.state.view(torch.float32).tolist() == [[0.5], [0.5]]
    assert rows.time.tolist() == [99, 99]


def test_erase_and_clear_remove_rows() -> None:
    table = sgd_table(dim=1)
    table.assign([1, 2, 3], [[1.0]] * 3)
    assert table.erase([2, 2, 9]) == 1
    assert sorted(table.ids().tolist()) == [1, 3]
    assert 1 in table
    assert 2 not in table
    table.clear()
    assert len(table) == 0
    assert table.lookup([1]).item() == 0.0


def test_a_removed_id_starts_from_the_initializer_again() -> None:
    table = HashTable(TableConfig([Segment(1, initializer=Ones(), optimizer=Adam())]))
    table.apply_gradients([1], [[3.0]])
    first = table.lookup_rows([1])
    table.erase([1])
    table.apply_gradients([1], [[3.0]])
    again = table.lookup_rows([1])
    assert torch.equal(first.weights, again.weights)
    assert torch.equal(first.state, again.state)


def test_random_initial_weights_depend_on_seed_and_id_only() -> None:
    def rows(seed: int, ids: list[int]) -> torch.Tensor:
        table = HashTable(TableConfig([Segment(4, initializer=RandomUniform(-1.0, 1.0))], seed=seed))
        table.apply_gradients(ids, torch.zeros(len(ids), 4))
        found: torch.Tensor = table.lookup([1, 2])
        return found

    assert torch.equal(rows(1, [1, 2]), rows(1, [2, 9, 1]))
    assert not torch.equal(rows(1, [1, 2]), rows(2, [1, 2]))
    assert not torch.equal(rows(1, [1, 2])[0], rows(1, [1, 2])[1])


def test_plan_read_and_apply_do_what_lookup_and_apply_gradients_do() -> None:
    planned, plain = sgd_table(), sgd_table()
    ids = torch.tensor([4, 5, 4, 4])
    grads = torch.arange(8.0).reshape(4, 2)
    for _ in range(2):
        plan = planned.plan(ids)
        assert torch.equal(planned.read(plan)[plan.inverse.long()], planned.lookup(ids))
        summed = torch.zeros(len(plan), 2).index_add_(0, plan.inverse.long(), grads)
        planned.apply(plan, summed, time=3, scale=0.5)
        plain.apply_gradients(ids, grads * 0.5, time=3)
    assert plan.counts.sum() == 4
    assert plan.unique_ids[plan.inverse.long()].tolist() == ids.tolist()
    assert torch.equal(planned.lookup(ids), plain.lookup(ids))


def test_delay_compensation_takes_the_rows_the_worker_saw() -> None:
    optimizer = DelayCompensated(Sgd(learning_rate=1.0), 0.5)
    table = HashTable(TableConfig([Segment(1, initializer=Ones(), optimizer=optimizer)]))
    table.apply_gradients([1], [[2.0]], latest=[[0.25]])
    assert table.lookup([1]).item() == 1.0 - (2.0 + 0.5 * 4.0 * 0.75)


@given(
    ids=hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5)),
    seed=st.integers(0, 1000),
)
def test_any_batch_ends_as_in_a_dictionary(ids: np.ndarray, seed: int) -> None:
    table = sgd_table(dim=3, learning_rate=0.5)
    grads = np.random.default_rng(seed).standard_normal((len(ids), 3)).astype(np.float32)
    expected: dict[int, np.ndarray] = {}
    for _ in range(2):
        sums: dict[int, np.ndarray] = {}
        for key, grad in zip(ids.tolist(), grads, strict=True):
            sums[key] = sums[key] + grad if key in sums else grad
        for key, total in sums.items():
            expected[key] = expected.get(key, np.zeros(3, np.float32)) - np.float32(0.5) * total
        table.apply_gradients(ids, grads)
    assert len(table) == len(expected)
    for key, row in expected.items():
        assert np.array_equal(table.lookup(np.array(key)), row)


def test_a_table_grows_from_empty_to_many_ids() -> None:
    table = sgd_table(dim=1)
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 200_000)
    for part in np.array_split(ids, 20):
        table.assign(part, part.astype(np.float32)[:, None], time=1)
    assert len(table) == len(np.unique(ids))
    assert np.array_equal(table.lookup(ids)[:, 0], ids.astype(np.float32))


def test_memory_of_removed_rows_is_used_again() -> None:
    table = sgd_table(dim=16)
    rows = np.ones((10_000, 16), np.float32)
    table.assign(np.arange(10_000), rows)
    before = table.stats()["row_bytes"]
    for start in range(10_000, 100_000, 10_000):
        table.clear() if start % 20_000 else table.erase(table.ids())
        table.assign(np.arange(start, start + 10_000), rows)
    assert table.stats()["row_bytes"] <= 1.5 * before


def test_threads_may_read_and_write_concurrently() -> None:
    table = sgd_table(dim=8)
    ids = np.arange(1000)
    errors: list[str] = []

    def write() -> None:
        for _ in range(30):
            table.apply_gradients(ids, np.full((1000, 8), -1.0, np.float32), time=1)

    def read() -> None:
        for _ in range(60):
            rows = table.lookup(ids)
            if not (rows == rows[:, :1]).all():
                errors.append("torn row")

    threads = [threading.Thread(target=target) for target in (write, write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (table.lookup(ids) == 60.0).all()


def test_stats_report_the_number_of_rows_and_bytes() -> None:
    table = sgd_table(dim=4)
    table.assign(np.arange(100), np.ones((100, 4), np.float32))
    stats = table.stats()
    assert stats["rows"] == 100
    assert stats["row_bytes"] >= 100 * (16 + 16)
    assert table.name in repr(table)


def test_a_dropped_table_is_freed_immediately() -> None:
    table = sgd_table()
    plan = table.plan([1])
    core = weakref.ref(table.native)
    del table
    assert core() is None
    assert plan.unique_ids.tolist() == [1]


def test_serving_tables_keep_rows_and_refuse_to_learn() -> None:
    table = HashTable(TableConfig([Segment(2)], serving=True, skip_zero=True))
    table.assign([1, 2], [[1.0, 2.0], [0.0, 0.0]], time=5)
    assert table.lookup([1, 2]).tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert len(table) == 1
    with pytest.raises(InvalidArgumentError, match="serving table and cannot learn"):
        table.apply_gradients([1], [[1.0, 1.0]])
    table.assign([1], [[0.0, 0.0]])
    assert len(table) == 0


def test_save_and_restore_bring_back_every_row(tmp_path: Path) -> None:
    config = TableConfig([Segment(2, optimizer=Adagrad()), Segment(1)])
    table, again = HashTable(config), HashTable(config)
    ids = np.arange(-50, 50)
    table.apply_gradients(ids, np.random.default_rng(0).standard_normal((100, 3)).astype(np.float32), time=9)
    table.save(tmp_path / "table")
    again.assign([1000], [[1.0, 1.0, 1.0]])
    again.restore(tmp_path / "table")
    before, after = table.lookup_rows(ids), again.lookup_rows(ids)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(before, after, strict=True))
    assert len(again) == 100
    handle = table.save(tmp_path / "later", background=True)
    handle.wait(30)
    again.restore(tmp_path / "later")
    assert len(again) == 100


def test_a_plan_reads_and_learns_per_id_as_lookup_and_apply_gradients_do() -> None:
    ids = torch.tensor([5, -1, 5, 2**62, 5, -1])
    grads = torch.arange(12, dtype=torch.float32).reshape(6, 2)
    config = TableConfig(segments=[Segment(2, optimizer=Adagrad(learning_rate=0.1))])
    planned, called = HashTable(config), HashTable(config)
    for step in range(3):
        plan = planned.plan(ids)
        assert torch.equal(planned.read(plan, per="id"), called.lookup(ids))
        planned.apply(plan, grads, per="id", step=step, time=7)
        called.apply_gradients(ids, grads, step=step, time=7)
    assert torch.equal(planned.lookup(ids), called.lookup(ids))


def test_per_of_another_word_is_refused() -> None:
    table = HashTable(TableConfig(segments=[Segment(2)]))
    with pytest.raises(ValueError, match="per must be 'unique' or 'id', got 'row'"):
        table.read(table.plan(torch.tensor([1])), per="row")  # type: ignore[arg-type]
