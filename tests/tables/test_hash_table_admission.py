"""Rare ids stay out of a table until they were seen often enough."""

from __future__ import annotations

import numpy as np
import pytest

from monolith.tables import HashTable, Segment, TableConfig, TableGroup
from monolith.tables.filters import ProbabilisticFilter, SlidingHashFilter
from monolith.tables.row_optimizers import Sgd

FILTER = SlidingHashFilter(capacity=100_000)
SLOT = 3


def in_slot(slot: int, signature: int) -> int:
    return slot << 48 | signature


def counting_table(**options: object) -> HashTable:
    segments = [Segment(1, optimizer=Sgd(learning_rate=0.1))]
    return HashTable(TableConfig(segments, admission=FILTER, **options))  # type: ignore[arg-type]


def test_without_dedup_occurrences_count_one_by_one() -> None:
    table = counting_table(min_count=3)
    expected = [(0.0, 0.0), (0.1, 0.0), (0.3, 0.0), (0.5, 0.1)]
    for values in expected:
        table.apply_gradients([0, 0, 1], -np.ones((3, 1), np.float32), dedup=False)
        assert table.lookup([0, 1]).flatten().tolist() == pytest.approx(values)


def test_with_dedup_a_batch_counts_after_the_decision() -> None:
    table = counting_table(min_count=3)
    five = [7] * 5
    result = table.apply_gradients(five, np.ones((5, 1), np.float32))
    assert (result.filtered, result.updated) == (1, 0)
    assert len(table) == 0
    assert table.apply_gradients([7], [[1.0]]).inserted == 1


def test_thresholds_may_differ_by_slot() -> None:
    table = counting_table(slot_min_counts={SLOT: 2})
    ids = [in_slot(SLOT, 1), in_slot(4, 1)]
    for seen in range(3):
        table.apply_gradients(ids, np.ones((2, 1), np.float32))
        assert table.contains(ids).tolist() == [seen == 2, True]


def test_assign_filters_new_ids_only_and_reinitialize_never() -> None:
    table = counting_table(min_count=2)
    for expected in (False, False, True, True):
        table.assign([5], [[1.0]])
        assert (5 in table) == expected
    table.assign_add([5], [[1.0]])
    assert table.lookup([5]).item() == 2.0
    assert table.reinitialize([6]).tolist() == [0]
    assert 6 in table


def test_reading_does_not_count() -> None:
    table = counting_table(min_count=1)
    for _ in range(5):
        table.lookup([5])
        table.contains([5])
        table.plan([5])
    table.apply_gradients([5], [[1.0]])
    assert len(table) == 0


def test_tables_of_a_group_count_apart() -> None:
    configs = {name: TableConfig([Segment(1)], min_count=1, admission=FILTER) for name in ("a", "b")}
    group = TableGroup(configs)
    group.apply_gradients({"a": [1]}, {"a": [[1.0]]})
    group.apply_gradients({"a": [1], "b": [1]}, {"a": [[1.0]], "b": [[1.0]]})
    assert (len(group["a"]), len(group["b"])) == (1, 0)


@pytest.mark.parametrize("equal", [False, True])
def test_the_probabilistic_filter_lets_a_share_in_and_is_reproducible(*, equal: bool) -> None:
    def admitted() -> list[int]:
        admission = ProbabilisticFilter(equal_probability=equal)
        table = HashTable(TableConfig([Segment(1)], min_count=4, admission=admission))
        table.apply_gradients(np.arange(4000), np.ones((4000, 1), np.float32), step=3)
        ids: list[int] = sorted(table.ids().tolist())
        return ids

    expected = 1 - 0.05 ** (1 / 4) if equal else 1 / 4
    assert len(admitted()) / 4000 == pytest.approx(expected, abs=0.03)
    assert admitted() == admitted()


def test_clear_discards_the_counts() -> None:
    table = counting_table(min_count=1)
    table.apply_gradients([5], [[1.0]])
    table.clear()
    table.apply_gradients([5], [[1.0]])
    assert len(table) == 0
