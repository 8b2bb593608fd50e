"""Tables and groups: whatever call brings a time that is far ahead, it does not make their rows old."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.errors import InvalidArgumentError
from monolith.tables import HashTable, Segment, TableConfig, TableGroup
from monolith.tables.local.native_tables import bound_times
from monolith.testing.reference_format import bounded_times

DAY = 86400
NOW = 1_700_000_000
WRONG = 4_102_444_800  # the year 2100
TWO = np.ones((2, 1), np.float32)

CALLS: Mapping[str, Callable[[HashTable, Any], object]] = {
    "assign": lambda table, time: table.assign([1, 2], TWO, time=time),
    "assign_add": lambda table, time: table.assign_add([1, 2], TWO, time=time),
    "apply_gradients": lambda table, time: table.apply_gradients([1, 2], TWO, time=time),
    "apply_pooled_gradients": lambda table, time: table.apply_pooled_gradients([1, 2], [0, 1, 2], TWO, time=time),
    "apply": lambda table, time: table.apply(table.plan([1, 2]), TWO, per="id", time=time),
    "group": lambda table, time: _group(table).apply_gradients({"t": [1, 2]}, {"t": TWO}, time=time),
    "group by name": lambda table, time: _group(table).apply_gradients({"t": [1, 2]}, {"t": TWO}, time={"t": time}),
    "group assign": lambda table, time: _group(table).assign({"t": [1, 2]}, {"t": TWO}, time=time),
    "plan of a group": lambda table, time: _apply_plan(_group(table), time),
}


def _group(table: HashTable) -> TableGroup:
    return TableGroup.of_store(table.store)


def _apply_plan(group: TableGroup, time: Any) -> object:
    return group.apply(group.plan({"t": [1, 2]}), np.ones(2, np.float32), time=time)


@pytest.fixture
def table() -> HashTable:
    made = HashTable(TableConfig([Segment(1)], name="t", expire_days=30))
    made.assign(np.arange(100), np.ones((100, 1), np.float32), time=NOW)
    return made


@pytest.mark.parametrize("name", CALLS)
def test_no_call_moves_the_clock_by_more_than_a_day(table: HashTable, name: str) -> None:
    CALLS[name](table, WRONG)
    assert table.newest_time == NOW + DAY
    CALLS[name](table, np.array([NOW + 5, WRONG]))
    assert table.newest_time == NOW + DAY
    assert table.lookup_rows([1, 2]).time.tolist() == [NOW + 5, NOW + DAY]
    assert table.evict() == 0
    assert table.store.stats().times_ahead > 0


@pytest.mark.parametrize("name", CALLS)
def test_times_of_the_past_and_of_today_are_taken_as_they_are(table: HashTable, name: str) -> None:
    CALLS[name](table, np.array([7, NOW + DAY]))
    assert table.lookup_rows([1, 2]).time.tolist() == [7, NOW + DAY]
    assert table.store.stats().times_ahead == 0


def test_reinitialize_is_bounded_too(table: HashTable) -> None:
    table.reinitialize([5], time=WRONG)
    assert table.newest_time == NOW + DAY
    assert table.store.stats().times_ahead == 1


def test_a_refused_call_is_not_counted(table: HashTable) -> None:
    with pytest.raises(InvalidArgumentError):
        table.apply_gradients([1], np.full((1, 1), np.nan, np.float32), time=WRONG)
    assert table.store.stats().times_ahead == 0


def test_an_explicit_time_of_eviction_is_believed(table: HashTable) -> None:
    assert table.evict(NOW + 30 * DAY) == 100


def test_rows_with_times_of_their_own_can_be_assigned_in_one_call() -> None:
    table = HashTable(TableConfig([Segment(1)], expire_days=60))
    times = NOW + np.arange(1000) % 40 * DAY
    table.assign(np.arange(1000), np.ones((1000, 1), np.float32), time=times)
    assert table.lookup_rows(np.arange(1000)).time.tolist() == times.tolist()


@given(
    times=st.lists(st.integers(0, 2**32 - 1) | st.integers(NOW - 3 * DAY, NOW + 3 * DAY), max_size=12),
    newest=st.sampled_from([0, 1, NOW, 2**32 - 1]) | st.integers(NOW - DAY, NOW + DAY),
)
@settings(max_examples=300)
def test_the_core_and_the_reference_have_one_rule(times: list[int], newest: int) -> None:
    bounded = bound_times(np.array(times, np.int64), newest)
    assert (bounded.times.tolist(), bounded.num_ahead) == bounded_times(times, newest)
    if newest and times:
        assert max(bounded.times) <= max(newest + DAY, 0)
