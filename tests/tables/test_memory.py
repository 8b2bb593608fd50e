"""Memory goes back to the system when rows are gone, and calls cost what they touch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from monolith.tables import HashTable, Segment, TableConfig, TableGroup
from monolith.tables.initializers import Zeros

DAY = 86400
ROWS = 100_000
DIM = 64


def resident_bytes() -> int:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


def fill(table: HashTable, first: int, count: int, *, day: int) -> None:
    ids = np.arange(first, first + count)
    table.assign(ids, np.repeat(ids[:, None], DIM, axis=1).astype(np.float32), time=day * DAY)


def require_filled(table: HashTable, first: int, count: int) -> None:
    ids = np.arange(first, first + count)
    assert np.array_equal(table.lookup(ids), np.repeat(ids[:, None], DIM, axis=1).astype(np.float32))


def expiring_table() -> HashTable:
    return HashTable(TableConfig([Segment(DIM)], expire_days=1))


def test_the_memory_of_evicted_rows_goes_back_to_the_system_and_is_used_again() -> None:
    table = expiring_table()
    fill(table, 0, ROWS, day=100)
    full, resident = table.stats(), resident_bytes()
    assert table.evict(now=200 * DAY) == ROWS
    empty = table.stats()
    assert empty["row_bytes"] < full["row_bytes"] / 20
    assert empty["index_bytes"] < full["index_bytes"] / 4
    assert resident_bytes() < resident - full["row_bytes"] * 0.8
    for round_number in range(1, 4):
        fill(table, round_number * ROWS, ROWS, day=100 + round_number)
        assert len(table) == ROWS
        require_filled(table, round_number * ROWS, ROWS)
        assert table.stats()["row_bytes"] <= full["row_bytes"] * 1.05, "the records are the same ones"
        assert table.evict(now=200 * DAY) == ROWS
    assert table.stats()["row_bytes"] < full["row_bytes"] / 20


@pytest.mark.slow
def test_rows_that_stay_are_intact_and_records_are_allocated_once() -> None:
    table = expiring_table()
    fill(table, 0, ROWS, day=100)
    fill(table, ROWS, ROWS // 5, day=101)
    fill(table, 0, 500, day=101)  # some of the old ones, here and there among the others
    with_all = table.stats()["row_bytes"]
    assert table.evict(now=101 * DAY + DAY // 2) == ROWS - 500
    assert table.stats()["row_bytes"] < with_all / 2
    fill(table, 2 * ROWS, ROWS, day=101)
    table.erase(np.arange(2 * ROWS, 2 * ROWS + 1000))
    fill(table, 4 * ROWS, 2 * ROWS, day=101)
    require_filled(table, 0, 500)
    require_filled(table, ROWS, ROWS // 5)
    require_filled(table, 2 * ROWS + 1000, ROWS - 1000)
    require_filled(table, 4 * ROWS, 2 * ROWS)
    expected = {*range(500), *range(ROWS, ROWS + ROWS // 5), *range(2 * ROWS + 1000, 3 * ROWS)}
    assert set(table.ids().tolist()) == expected | {*range(4 * ROWS, 6 * ROWS)}


def test_a_table_of_which_most_rows_stay_keeps_its_memory() -> None:
    table = expiring_table()
    fill(table, 0, ROWS, day=101)
    fill(table, 0, ROWS // 4, day=100)
    before = table.stats()
    assert table.evict(now=101 * DAY + DAY // 2) == ROWS // 4
    assert (table.stats()["row_bytes"], table.stats()["index_bytes"]) == (before["row_bytes"], before["index_bytes"])


@pytest.mark.parametrize("pooled", [False, True], ids=["per id", "pooled"])
def test_an_update_of_one_table_of_many_scans_that_one_only(*, pooled: bool) -> None:
    names = [f"table{number:03}" for number in range(40)]
    segments = [Segment(2 + number % 3, initializer=Zeros()) for number in range(len(names))]
    group = TableGroup({name: TableConfig([segment]) for name, segment in zip(names, segments, strict=True)})
    ids = torch.arange(10)
    for number in (0, 17, 39):
        plan = group.native.core.plan_table(number, ids.numpy(), True)
        assert len(plan.splits) == 1025, "a cell for each bucket, not for each bucket of every table"
        alone = HashTable(TableConfig([segments[number]]))
        for table in (group[names[number]], alone):
            if pooled:
                table.apply_pooled_gradients(ids, [0, 4, 10], torch.ones(2, table.dim), "mean", time=1)
            else:
                table.apply_gradients(ids, torch.ones(10, table.dim), time=1)
        assert torch.equal(group[names[number]].lookup(ids), alone.lookup(ids))
    assert [len(group[name]) for name in names] == [10 * (number in (0, 17, 39)) for number in range(40)]


def test_a_small_table_takes_less_than_200_kb() -> None:
    configs = {f"table{number:03}": TableConfig([Segment(4)]) for number in range(200)}
    TableGroup(dict(list(configs.items())[:2]))["table000"].apply_gradients(torch.arange(10), torch.ones(10, 4), time=1)
    before = resident_bytes()
    group = TableGroup(configs)
    for name in configs:
        group[name].apply_gradients(torch.arange(10), torch.ones(10, 4), time=1)
    assert resident_bytes() - before < 200_000 * len(configs)
