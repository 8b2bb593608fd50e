"""Rows expire by the time of the data, and caps hold."""

from __future__ import annotations

import numpy as np
import pytest

from monolith.errors import InvalidArgumentError
from monolith.tables import HashTable, Segment, TableConfig, TableGroup

DAY = 86400


def in_slot(slot: int, signature: int) -> int:
    return slot << 48 | signature


def table_with(times: dict[int, int], **options: object) -> HashTable:
    table = HashTable(TableConfig([Segment(1)], **options))  # type: ignore[arg-type]
    table.assign(list(times), [[1.0]] * len(times), time=np.array(list(times.values())))
    return table


def test_a_row_expires_when_its_days_have_passed_exactly() -> None:
    table = table_with({1: 1000, 2: 1001}, expire_days=2)
    assert table.evict(1000 + 2 * DAY - 1) == 0
    assert table.evict(1000 + 2 * DAY) == 1
    assert table.ids().tolist() == [2]


def test_without_a_time_the_newest_update_is_the_reference() -> None:
    table = table_with({1: 0, 2: DAY}, expire_days=1)
    assert table.evict() == 1
    assert table.ids().tolist() == [2]


def test_zero_days_expire_everything() -> None:
    table = table_with({1: 5, 2: 7}, expire_days=0)
    assert table.evict() == 2
    assert table.evict(0) == 0


def test_rows_from_the_future_do_not_expire() -> None:
    table = table_with({1: 100 * DAY}, expire_days=1)
    assert table.evict(5) == 0


def test_slots_have_expiry_times_of_their_own() -> None:
    ids = {in_slot(3, 1): 0, in_slot(4, 1): 0, -1: 0}
    table = table_with(ids, expire_days=10, slot_expire_days={3: 1, 32767: 2})
    assert table.evict(DAY) == 1
    assert in_slot(3, 1) not in table
    assert table.evict(2 * DAY) == 1
    assert -1 not in table
    assert table.evict(10 * DAY) == 1


def test_an_update_makes_a_row_young_again() -> None:
    table = table_with({1: 0}, expire_days=1)
    table.apply_gradients([1], [[1.0]], time=DAY)
    assert table.evict(DAY + 5) == 0


def test_an_older_update_makes_a_row_old_again() -> None:
    table = table_with({1: 5 * DAY}, expire_days=1)
    table.apply_gradients([1], [[1.0]], time=0)
    assert table.newest_time == 5 * DAY
    assert table.evict() == 1


def test_a_group_evicts_each_table_by_its_own_newest_time() -> None:
    group = TableGroup({name: TableConfig([Segment(1)], expire_days=1) for name in ("a", "b")})
    for name, newest in (("a", 2 * DAY), ("b", 3 * DAY)):
        group[name].assign([1, 2], [[1.0]] * 2, time=np.array([2 * DAY, newest]))
    assert group.evict() == 1
    assert sorted(group["a"].ids().tolist()) == [1, 2]
    assert group["b"].ids().tolist() == [2]
    assert group.evict(100 * DAY) == 3


@pytest.mark.parametrize("now", [-2, 2**32])
def test_a_reference_time_outside_of_32_bits_is_refused(now: int) -> None:
    with pytest.raises(InvalidArgumentError, match="time must be Unix seconds"):
        table_with({1: 0}).evict(now)


def test_evictions_are_counted() -> None:
    table = table_with({1: 0, 2: 0}, expire_days=1)
    table.evict(DAY)
    assert table.stats()["evicted"] == 2


def test_a_cap_removes_the_least_recently_updated() -> None:
    table = HashTable(TableConfig([Segment(1)], max_rows=2000, eviction="lru"))
    ids = np.arange(4000)
    for second, part in enumerate(np.array_split(ids, 40)):
        table.assign(part, np.ones((len(part), 1), np.float32), time=second)
    assert len(table) <= 2000
    survivors = table.ids().numpy()
    assert survivors.mean() > 2500
    assert set(range(3950, 4000)) <= set(survivors.tolist())


def test_a_cap_removes_the_least_frequently_updated() -> None:
    table = HashTable(TableConfig([Segment(1)], max_rows=2000, eviction="lfu"))
    often = np.arange(500)
    for second in range(10):
        table.apply_gradients(often, np.ones((500, 1), np.float32), time=second)
    for second in range(20):
        rare = np.arange(1000 + second * 200, 1200 + second * 200)
        table.apply_gradients(rare, np.ones((200, 1), np.float32), time=100 + second)
    assert len(table) <= 2000
    assert table.contains(often).all()


def trained(table: HashTable, ids: list[int], time: int) -> set[int]:
    """The ids that have a row after they were trained at this time."""
    table.apply_gradients(ids, np.ones((len(ids), 1), np.float32), time=time)
    return set(table.ids().tolist())


@pytest.mark.parametrize(("seconds", "late"), [(None, 2 * 3600), (600, 600), (30 * DAY, 30 * DAY)])
def test_updates_remove_what_has_expired_within_the_interval(seconds: float | None, late: int) -> None:
    table = HashTable(TableConfig([Segment(1)], expire_days=2, evict_every_seconds=seconds))
    last: dict[int, int] = {}
    for hour in range(12 * 24):
        time = 100 * DAY + hour * 3600 + hour % 7
        ids = [hour % 50, 1000 + hour, *range(5000 + 20 * hour, 5020 + 20 * hour)]
        rows = trained(table, ids, time)
        last |= dict.fromkeys(ids, time)
        assert {key for key, seen in last.items() if time - seen < 2 * DAY} <= rows
        assert rows <= {key for key, seen in last.items() if time - seen < 2 * DAY + late}
    assert table.stats()["evicted"] >= len(last) - len(rows) > 0


@pytest.mark.parametrize("options", [{}, {"expire_days": 1, "evict_every_seconds": 0}])
def test_updates_remove_nothing_where_rows_do_not_expire_by_themselves(options: dict[str, int]) -> None:
    table = HashTable(TableConfig([Segment(1)], **options))  # type: ignore[arg-type]
    trained(table, [1], 0)
    for day in range(1, 20):
        assert trained(table, [2], day * DAY) == {1, 2}


def test_an_update_that_passes_many_intervals_scans_every_row_once() -> None:
    table = HashTable(TableConfig([Segment(1)], expire_days=1, evict_every_seconds=1))
    trained(table, list(range(10_000)), 5 * DAY)
    assert trained(table, [-1], 6 * DAY) == {-1}


def test_an_old_update_of_a_removed_row_starts_it_from_scratch_and_does_not_keep_it() -> None:
    table = HashTable(TableConfig([Segment(1)], expire_days=1, evict_every_seconds=60))
    trained(table, [1], 5 * DAY)
    trained(table, [1], 5 * DAY)
    learned = float(table.lookup([1])[0, 0])
    assert trained(table, [2], 6 * DAY) == {2}
    assert trained(table, [1], 5 * DAY + 9) == {1, 2}  # it was on its way when the row was removed
    assert float(table.lookup([1])[0, 0]) == pytest.approx(learned / 2)
    assert trained(table, [2], 6 * DAY + 120) == {2}


def test_one_wrong_time_expires_nothing() -> None:
    table = HashTable(TableConfig([Segment(1)], expire_days=2, evict_every_seconds=60))
    ids = list(range(100))
    trained(table, ids, 50 * DAY)
    times = np.full(100, 50 * DAY + 30)
    times[7] = 2**32 - 1
    table.apply_gradients(ids, np.ones((100, 1), np.float32), time=times)
    assert trained(table, ids[:1], 50 * DAY + 600) == set(ids)


def test_removed_rows_are_in_the_history_and_not_in_a_cut_before() -> None:
    table = HashTable(TableConfig([Segment(1)], expire_days=1, evict_every_seconds=60))
    trained(table, [1, 2], 5 * DAY)
    mark = table.mark()
    with table.store.cut() as cut:
        assert trained(table, [2], 6 * DAY) == {2}
        assert sum(cut.rows.values()) == 2
    assert table.tombstones(mark).tolist() == [1]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 2.0**32])
def test_a_wrong_interval_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"evict_every_seconds must be in \[0, 2\^32\) or None"):
        TableConfig([Segment(1)], evict_every_seconds=seconds)
