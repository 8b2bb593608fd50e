"""Rows expire by the time of the data, and caps hold."""

from __future__ import annotations

import threading
import time
import weakref

import numpy as np
import pytest

from monolith.errors import InvalidArgumentError, UnavailableError
from monolith.tables import HashTable, Segment, TableConfig, TableGroup
from monolith.tables._background_eviction import BackgroundEviction

DAY = 86400


def in_slot(slot: int, signature: int) -> int:
    return slot << 48 | signature


def table_with(times: dict[int, int], **options: object) -> HashTable:
    table = HashTable(TableConfig([Segment(1)], **options))  # type: ignore[arg-type]
    table.assign(list(times), [[1.0]] * len(times), time=np.array(list(times.values())))
    return table


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


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


def test_slots_have_life_times_of_their_own() -> None:
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


def test_background_eviction_works_until_it_is_stopped() -> None:
    table = table_with({1: 0, 2: DAY}, expire_days=1)
    eviction = table.evict_in_background(0.01)
    assert eviction.name == "monolith-evict-table"
    wait_until(lambda: len(table) == 1)
    wait_until(lambda: eviction.evicted == 1)
    eviction.stop()
    assert not eviction.is_running()
    table.assign([3], [[1.0]], time=50 * DAY)
    time.sleep(0.05)
    assert len(table) == 2
    eviction.stop()


def test_background_eviction_is_a_context_manager() -> None:
    group = TableGroup({name: TableConfig([Segment(1)], expire_days=0) for name in ("a", "b")})
    group.assign({"a": [1], "b": [2]}, {"a": [[1.0]], "b": [[1.0]]}, time=3)
    with group.evict_in_background(0.01) as eviction:
        wait_until(lambda: len(group["a"]) + len(group["b"]) == 0)
        assert eviction.name == "monolith-evict-all"
    assert not eviction.is_running()


def test_a_config_can_ask_for_background_eviction() -> None:
    table = table_with({1: 0, 2: DAY}, expire_days=1, evict_every_seconds=0.01)
    wait_until(lambda: len(table) == 1)
    table.close()
    assert all(not thread.name.startswith("monolith-evict") for thread in threading.enumerate())


def test_the_thread_ends_with_its_table() -> None:
    table = table_with({1: 0}, expire_days=1)
    eviction = table.evict_in_background(1000.0)
    alive = weakref.ref(table.native)
    del table
    assert alive() is None
    wait_until(lambda: not eviction.is_running())


@pytest.mark.parametrize("error", [RuntimeError("a bug"), UnavailableError("no rows")])
def test_stopping_raises_whatever_ended_the_thread(error: Exception) -> None:
    class Core:
        def evict(self, table: int, now: int) -> int:
            raise error

    class Group:
        names = ("a",)
        core = Core()

    group = Group()
    eviction = BackgroundEviction(group, every_seconds=0.001)  # type: ignore[arg-type]
    wait_until(lambda: not eviction.is_running())
    with pytest.raises(type(error), match=str(error)):
        eviction.stop()


def test_stopping_says_when_an_eviction_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_with({1: 0})
    eviction = table.evict_in_background(1000.0)
    monkeypatch.setattr(eviction._thread, "join", lambda timeout: None)
    monkeypatch.setattr(eviction._thread, "is_alive", lambda: True)
    with pytest.raises(
        UnavailableError, match=r"monolith-evict-table: still evicting after 0.1 s; call stop\(\) again"
    ):
        eviction.stop(0.1)
    monkeypatch.undo()
    eviction.stop()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_interval_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match="every_seconds must be > 0"):
        table_with({1: 0}).evict_in_background(seconds)
