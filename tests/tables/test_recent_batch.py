"""Lookups that share their plan with the update that follows give what calls on their own give."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from monolith.tables import HashTable, Segment, TableConfig, row_optimizers
from monolith.tables.hash_table import FEWEST_IDS, RecentBatch

DIM = 3


def new_table() -> HashTable:
    return HashTable(TableConfig([Segment(DIM, optimizer=row_optimizers.Adagrad(learning_rate=0.5))]))


def batch(seed: int, size: int = FEWEST_IDS) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(-50, 50, size)


def gradient(ids: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.random.default_rng(len(ids)).standard_normal((len(ids), DIM)).astype(np.float32)


class Pair:
    """One table that may share plans, and one on which every call stands alone."""

    def __init__(self) -> None:
        self.shared, self.alone = new_table(), new_table()

    def lookup(self, ids: NDArray[np.int64]) -> None:
        plan = self.alone.plan(ids)
        np.testing.assert_array_equal(self.shared.lookup(ids), self.alone.read(plan, per="id"))

    def train(self, ids: NDArray[np.int64], *, dedup: bool = True) -> None:
        counts = [
            table.apply_gradients(ids.copy() if table is self.alone else ids, gradient(ids), time=0, dedup=dedup)
            for table in (self.shared, self.alone)
        ]
        assert counts[0] == counts[1]

    def compare(self) -> None:
        every = np.arange(-60, 60)
        np.testing.assert_array_equal(self.shared.lookup(every), self.alone.lookup(every))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["lookup", "train", "change", "each"]), st.integers(0, 2)), max_size=12))
def test_any_order_of_calls_learns_the_same(calls: list[tuple[str, int]]) -> None:
    pair, batches = Pair(), [batch(seed) for seed in range(3)]
    for call, number in calls:
        if call == "lookup":
            pair.lookup(batches[number])
        elif call == "train":
            pair.train(batches[number])
        elif call == "each":
            pair.train(batches[number], dedup=False)
        else:
            batches[number][number] += 1  # in place, as a loop that reuses its arrays does
    pair.compare()


def count_plans(table: HashTable, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []

    class Counting:
        def __init__(self, core: Any) -> None:
            self._core = core

        def __getattr__(self, name: str) -> Any:
            if name in {"plan", "plan_table"}:
                made.append(1)
            return getattr(self._core, name)

    monkeypatch.setattr(table, "_core", Counting(table._core))
    return made


def test_a_training_loop_plans_each_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table()
    made = count_plans(table, monkeypatch)
    for seed in range(5):
        ids = torch.from_numpy(batch(seed))
        table.lookup(ids)
        table.apply_gradients(ids, torch.zeros(len(ids), DIM))
    assert len(made) == 5


def test_a_loop_that_only_looks_up_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table, ids = new_table(), batch(0)
    made = count_plans(table, monkeypatch)
    table.lookup(ids)
    table.apply_gradients(ids, gradient(ids))  # from here on an update is expected
    made.clear()
    for _ in range(4):
        table.lookup(ids)
    assert len(made) == 1  # in vain, and not again


def test_ids_that_changed_meanwhile_get_a_plan_of_their_own() -> None:
    recent, table, ids = RecentBatch(), new_table(), batch(1)
    assert not recent.expects_update(ids)
    assert recent.take_plan(ids, ids) is None
    assert recent.expects_update(ids)
    plan = table.plan(ids).core
    recent.keep(plan)
    ids[0] += 1
    assert recent.take_plan(ids, ids) is None
    assert not recent.expects_update(ids)


def test_a_plan_is_given_away_once() -> None:
    recent, table, ids = RecentBatch(), new_table(), batch(1)
    plan = table.plan(ids).core
    recent.keep(plan)
    assert recent.take_plan(ids, ids) is plan
    assert recent.take_plan(ids, ids) is None


def test_threads_do_not_see_each_others_batches() -> None:
    pair, ids = Pair(), batch(2)
    pair.lookup(ids)
    pair.train(ids)
    pair.lookup(ids)
    thread = threading.Thread(target=pair.train, args=(ids,))
    thread.start()
    thread.join()
    pair.train(ids)
    pair.compare()
