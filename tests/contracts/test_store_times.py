"""A time far ahead of the others does not move the clock by which rows expire, whatever engine keeps the rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
import torch

from contracts.engines import StoreFactory, stores_of
from contracts.one_worker import ONE_TABLE, Worker, stamp
from monolith.tables import Segment, TableConfig
from monolith.tables.batch import Update
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.row_optimizers import Sgd
from monolith.tables.store import Store
from monolith.testing.reference_format import bounded_times, bucket_of_id, build_block

DAY = 86400
NOW = 1_700_000_000
WRONG = 4_102_444_800  # the year 2100


def times_of(store: Store) -> dict[int, int]:
    with store.cut() as cut:
        blocks = [block for block in cut.blocks(ALL_BUCKETS, state=True) if block.kind is BlockKind.FULL]
        return {key: time for each in blocks for key, time in zip(each.keys.tolist(), each.times.tolist(), strict=True)}


def rows_of(store: Store) -> set[tuple[str, int]]:
    with store.cut() as cut:
        blocks = [block for block in cut.blocks(ALL_BUCKETS, state=True) if block.kind is BlockKind.FULL]
        return {("ab"[each.table], key) for each in blocks for key in each.keys.tolist()}


def train(worker: Worker, ids: Sequence[int], times: int | list[int]) -> None:
    """The next batch, with a time of its own for each id if there are several."""
    plan = worker.plan(ids, worker.last + 1)
    worker.session.read(plan, after=worker.last, step=0, train=True).result()
    given = torch.tensor(times) if isinstance(times, list) else times
    rule = Update(previous=worker.last, step=0, learning_rates=torch.ones(1), times=given)
    worker.session.apply([(plan, torch.ones(plan.num_values))], rule).result()
    worker.last += 1


def filled(new_store: StoreFactory, *, num_rows: int = 60) -> tuple[Store, Worker]:
    store = new_store({"user": TableConfig([Segment(2, optimizer=Sgd())], expire_days=30, evict_every_seconds=0)})
    worker = Worker(store)
    for day in range(3):
        train(worker, range(day * num_rows // 3, (day + 1) * num_rows // 3), NOW + day * DAY)
    return store, worker


@pytest.mark.parametrize("times", [WRONG, [WRONG, WRONG], [NOW + 2 * DAY, WRONG]])
def test_wrong_times_remove_no_row(new_store: StoreFactory, times: int | list[int]) -> None:
    store, worker = filled(new_store)
    for _ in range(20):  # a day with each, at most
        train(worker, [1, 2], times)
        assert worker.session.evict(now=-1) == 0
    assert store.stats().rows == 60
    assert store.stats().times_ahead == 20 * (1 if isinstance(times, int) else times.count(WRONG))


def test_a_minority_of_wrong_times_does_not_move_the_clock_however_often_it_comes(new_store: StoreFactory) -> None:
    store, worker = filled(new_store)
    for _ in range(40):
        train(worker, [1, 2, 3], [NOW + 2 * DAY, NOW + 2 * DAY + 5, WRONG])
    assert {times_of(store)[key] for key in (1, 2, 3)} == {NOW + 2 * DAY, NOW + 2 * DAY + 5}
    assert worker.session.evict(now=-1) == 0
    train(worker, [9], NOW + 3 * DAY + 5)  # a day beyond what was believed
    assert store.stats().times_ahead == 40


def test_after_a_gap_the_clock_comes_up_day_by_day_and_rows_expire(new_store: StoreFactory) -> None:
    store, worker = filled(new_store)
    later = NOW + 40 * DAY
    evicted = 0
    for _ in range(38):
        train(worker, [1000], later)
        evicted += worker.session.evict(now=-1)
    assert times_of(store)[1000] == later
    assert evicted == 60
    before = store.stats().times_ahead
    assert before == 37
    train(worker, [1000], later + DAY)
    assert store.stats().times_ahead == before


def test_the_first_batch_of_a_store_is_judged_by_itself(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    train(worker, [1, 2, 3, 4, 5], [NOW, NOW - DAY // 2, WRONG, NOW + 60, NOW - 7])
    assert times_of(store)[3] == NOW
    assert worker.session.evict(now=-1) == 0


def test_a_time_that_was_given_for_eviction_is_believed(new_store: StoreFactory) -> None:
    _, worker = filled(new_store)
    assert worker.session.evict(now=NOW + 31 * DAY) == 40


def test_a_repeated_push_is_not_counted_again(new_store: StoreFactory) -> None:
    store, worker = filled(new_store)
    for _ in range(2):
        plan = worker.plan([1], 7)
        worker.session.read(plan, after=2, step=0, train=True).result()
        worker.push(plan, previous=2, time=WRONG)
    assert store.stats().times_ahead == 1


def test_blocks_that_are_assigned_are_judged_alike(new_store: StoreFactory) -> None:
    store, worker = filled(new_store)
    schema = store.schema.tables[0]
    payload = bytes(4 * schema.dim + schema.state_bytes)
    block = build_block(
        BlockKind.FULL, digest=schema.digest, table=0, bucket=bucket_of_id(5), epoch=0, rows=[(5, WRONG, payload)]
    )
    store.assign(block, add=False)
    assert times_of(store)[5] == NOW + 3 * DAY
    assert store.stats().times_ahead == 1
    assert worker.session.evict(now=-1) == 0


def test_the_clock_is_that_of_all_tables(new_store: StoreFactory) -> None:
    config = TableConfig([Segment(1, optimizer=Sgd())], expire_days=3, evict_every_seconds=0)
    store = new_store({"a": config, "b": config})
    session = store.join(0)
    for seq, (splits, time) in enumerate([([0, 1, 1], NOW), *(([0, 0, 1], NOW + day * DAY) for day in range(1, 11))]):
        plan = session.plan(torch.tensor([7]), torch.tensor(splits), stamp=stamp(seq))
        rule = Update(previous=seq - 1, step=0, learning_rates=torch.ones(2), times=time)
        session.apply([(plan, torch.ones(1))], rule).result()
    plan = session.plan(torch.tensor([8]), torch.tensor([0, 1, 1]), stamp=stamp(11))
    rule = Update(previous=10, step=0, learning_rates=torch.ones(2), times=NOW + 10 * DAY)
    session.apply([(plan, torch.ones(1))], rule).result()
    assert store.stats().times_ahead == 0  # table a slept for ten days, the store did not
    assert session.evict(now=-1) == 1


def test_updates_remove_what_has_expired_by_the_newest_time_of_all_tables(new_store: StoreFactory) -> None:
    config = TableConfig([Segment(1, optimizer=Sgd())], expire_days=2)
    store, seen = new_store({"a": config, "b": config}), dict[tuple[str, int], int]()
    session = store.join(0)
    for seq in range(16):
        ids = [seq % 3, *range(1000 + 20 * seq, 1020 + 20 * seq)]
        splits = [0, 0, len(ids)] if seq % 2 else [0, len(ids), len(ids)]
        plan = session.plan(torch.tensor(ids), torch.tensor(splits), stamp=stamp(seq))
        session.read(plan, after=seq - 1, step=0, train=True).result()
        time = NOW + seq * DAY // 2
        rule = Update(previous=seq - 1, step=0, learning_rates=torch.ones(2), times=time)
        session.apply([(plan, torch.ones(plan.num_values))], rule).result()
        seen |= {("ab"[seq % 2], each): time for each in ids}
        kept = {each for each, last in seen.items() if time - last < 2 * DAY}
        late = {each for each, last in seen.items() if time - last < 2 * DAY + 2 * 3600}
        assert kept <= rows_of(store) <= late
    assert rows_of(store) == kept  # updates are further apart than the interval
    assert session.evict(now=time) == 0


@pytest.mark.parametrize("name", ["local", "three servers here"])
def test_it_warns_once(caplog: pytest.LogCaptureFixture, name: str) -> None:
    with stores_of(name) as make:
        _, worker = filled(make)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                train(worker, [1, 2], [NOW, WRONG])
        (record,) = caplog.records
        assert "1 of 2 times of a batch are more than a day ahead" in record.getMessage()


@pytest.mark.parametrize(
    ("times", "newest", "expected"),
    [
        ([], NOW, []),
        ([NOW + DAY], NOW, [NOW + DAY]),
        ([NOW + DAY + 1], NOW, [NOW + DAY]),
        ([NOW - 5, WRONG], NOW, [NOW - 5, NOW]),
        ([NOW + 5, WRONG], NOW, [NOW + 5, NOW + 5]),
        ([WRONG, WRONG, NOW], NOW, [NOW + DAY, NOW + DAY, NOW]),
        ([WRONG], 0, [WRONG]),
        ([3, WRONG, 9], 0, [3, 9, 9]),
    ],
)
def test_the_rule_in_numbers(times: list[int], newest: int, expected: list[int]) -> None:
    assert bounded_times(times, newest)[0] == expected
