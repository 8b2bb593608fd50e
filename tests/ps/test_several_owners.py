"""Rows that several owners divide: what one of them refuses changes none, and they agree on what concerns all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch

from contracts.engines import ServedStore
from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from monolith.ps import PsCluster, PsServer
from monolith.tables import (
    BatchStamp,
    BlockKind,
    ChangeReader,
    LocalStore,
    Plan,
    RowBlock,
    Segment,
    TableConfig,
    Update,
    WorkerSession,
    owned_ranges,
)
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.row_optimizers import Adagrad, Sgd
from monolith.tables.store import Store
from monolith.testing.reference_format import bucket_of_id, build_block
from ps.server_fixtures import running

DAY = 86400
TABLES = {
    "item": TableConfig([Segment(3, optimizer=Adagrad())], expire_days=2),
    "user": TableConfig([Segment(2, optimizer=Sgd())], expire_days=2, nonfinite="skip"),
}


@pytest.fixture
def servers() -> Iterator[list[PsServer]]:
    """Three servers, which divide the buckets unevenly."""
    with running(3) as started:
        yield started


@pytest.fixture
def store(servers: list[PsServer]) -> Iterator[ServedStore]:
    """A store whose rows these servers divide."""
    with (
        PsCluster([server.address for server in servers]) as cluster,
        closing(ServedStore(TABLES, cluster=cluster)) as made,
    ):
        yield made


def owner_of(key: int, num_owners: int) -> int:
    return bucket_of_id(key) * num_owners // 1024


def ids_of_owner(number: int, num_owners: int, count: int) -> list[int]:
    """Ids that this owner has."""
    return [key for key in range(200 * num_owners * count) if owner_of(key, num_owners) == number][:count]


def plan_of(store: Store, items: list[int], users: list[int], seq: int) -> Plan:
    splits = torch.tensor([0, len(items), len(items) + len(users)])
    return store.plan(torch.tensor(items + users, dtype=torch.int64), splits, stamp=BatchStamp(worker=0, seq=seq))


def rule(seq: int, *, times: Any = 0, scale: float = 1.0, known_finite: bool = False) -> Update:
    rates = torch.tensor([0.5, 0.5])
    return Update(previous=seq - 1, step=seq, learning_rates=rates, times=times, scale=scale, known_finite=known_finite)


def train(session: WorkerSession, store: Store, items: list[int], seq: int, *, time: int = 0) -> None:
    plan = plan_of(store, items, [], seq)
    values = session.read(plan, after=seq - 1, step=seq, train=True).result().values
    session.apply([(plan, torch.ones_like(values))], rule(seq, times=time)).result()


def contents(store: Store) -> dict[tuple[int, int], tuple[int, bytes]]:
    cut = store.cut()
    blocks = [block for block in cut.blocks(ALL_BUCKETS, state=True) if block.kind is BlockKind.FULL]
    cut.release()
    return {
        (block.table, key): (time, payload.tobytes())
        for block in blocks
        for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True)
    }


def stamps_of(store: Store) -> list[dict[int, int]]:
    """Worker -> number of its last batch, at each owner."""
    with store.cut() as cut:
        return [{worker: stamp.seq for worker, stamp in clock.stamps.items()} for clock in cut.applied]


@pytest.mark.parametrize("num_owners", [1, 2, 3, 7, 1000, 1024])
def test_the_buckets_are_divided_as_ids_are(num_owners: int) -> None:
    owned = owned_ranges(num_owners)
    assert [bucket for buckets in owned for bucket in buckets] == list(ALL_BUCKETS)
    assert all(bucket_of_id(key) in owned[owner_of(key, num_owners)] for key in range(2000))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_gradient_that_one_owner_refuses_changes_none(store: ServedStore, number: int, bad: float) -> None:
    session = store.join(0)
    items = [key for each in range(3) for key in ids_of_owner(each, 3, 4)]
    train(session, store, items[::2], 0)
    before, rows = contents(store), store.stats().rows
    plan = plan_of(store, items, [], 1)
    gradient = torch.ones(len(items), 3)
    wrong = ids_of_owner(number, 3, 4)[3]
    gradient[plan.unique_ids == wrong] = bad
    session.read(plan, after=0, step=1, train=True).result()
    with pytest.raises(InvalidArgumentError, match=f"table 'item': the gradient of id {wrong} is not finite"):
        session.apply([(plan, gradient.view(-1))], rule(1)).result()
    assert contents(store) == before
    assert (store.stats().rows, store.stats().open_plans) == (rows, 1)
    assert stamps_of(store) == [{0: 0}] * 3
    assert not session.apply([(plan, torch.ones(3 * len(items)))], rule(1)).result().duplicate
    assert stamps_of(store) == [{0: 1}] * 3


def test_what_becomes_infinite_by_the_scale_or_the_sum_is_refused_by_all(store: ServedStore) -> None:
    items = [ids_of_owner(each, 3, 1)[0] for each in range(3)]
    huge = torch.full((9,), 3e38)
    huge[:6] = 1.0
    session = store.join(0)
    with pytest.raises(InvalidArgumentError, match="is not finite"):
        session.apply([(plan_of(store, items, [], 0), huge)], rule(0, scale=10.0)).result()
    pairs = [(plan_of(store, items, [], seq), huge) for seq in (0, 1)]
    with pytest.raises(InvalidArgumentError, match="is not finite"):
        session.apply(pairs, rule(0, known_finite=True)).result()
    assert store.stats().rows == 0


def test_a_table_that_skips_does_so_at_every_owner(store: ServedStore) -> None:
    users = [ids_of_owner(each, 3, 1)[0] for each in range(3)]
    for each in (store, LocalStore(TABLES)):
        plan = plan_of(each, [], users, 0)
        gradient = torch.ones(3, 2)
        gradient[1] = float("nan")
        applied = each.join(0).apply([(plan, gradient.view(-1))], rule(0)).result()
        assert (applied.updated, applied.skipped, applied.duplicate) == (2, 1, False)


def test_times_go_with_their_ids(store: ServedStore) -> None:
    whole = LocalStore(TABLES)
    for each in (store, whole):
        plans = [plan_of(each, list(range(10)), [3, 3], 0), plan_of(each, [2, 99, 2], list(range(5)), 1)]
        times = torch.arange(20) * 7 + 100
        pairs = [(plan, torch.ones(3 * 10 + 2 if number == 0 else 3 * 2 + 2 * 5)) for number, plan in enumerate(plans)]
        each.join(0).apply(pairs, rule(0, times=times)).result()
    assert contents(store) == contents(whole)
    plan = plan_of(store, list(range(10)), [3, 3], 2)
    with pytest.raises(InvalidArgumentError, match=r"shape \(12,\) of ids, got \(3,\)"):
        store.join(0).apply([(plan, torch.ones(32))], rule(1, times=torch.zeros(3, dtype=torch.int64))).result()


def test_expiry_counts_from_the_newest_time_of_all_owners(store: ServedStore) -> None:
    old, new = ids_of_owner(0, 3, 2), ids_of_owner(2, 3, 1)
    session = store.join(0)
    for seq, day in enumerate(range(1, 11)):
        train(session, store, old if day == 1 else new, seq, time=day * DAY)
        assert store.stats().rows == (2 if day == 1 else 3 if day == 2 else 1)
    assert [key for _, key in contents(store)] == new


def test_a_damaged_block_of_the_last_owner_changes_none(store: ServedStore) -> None:
    source = LocalStore(TABLES)
    train(source.join(0), source, list(range(60)), 0)
    with source.cut() as cut:
        blocks = list(cut.blocks(ALL_BUCKETS, state=True))
    damaged = bytearray(blocks[-1].data)
    damaged[-5] ^= 1
    train(store.join(0), store, [1000], 0)
    before = contents(store)
    for replace in (False, True):
        with pytest.raises(DataLossError):
            store.load([*blocks[:-1], RowBlock(bytes(damaged))], buckets=ALL_BUCKETS, replace=replace)
    assert contents(store) == before
    report = store.load(iter(blocks), buckets=range(100, 900), replace=True)
    inside = sum(block.count for block in blocks if 100 <= block.bucket < 900)
    assert (report.rows, report.ignored) == (inside, 60 - inside)


def test_a_cut_that_one_owner_rejects_leaves_the_history_intact(store: ServedStore, servers: list[PsServer]) -> None:
    session = store.join(0)
    train(session, store, list(range(30)), 0)
    held = servers[2]._service.stores.find(store.name).store.cut()
    for _ in range(3):
        with pytest.raises(FailedPreconditionError):
            store.cut()
    held.release()
    reader = store.open_reader("follower")
    train(session, store, list(range(20, 40)), 1)
    reached = reader.next_mark()
    assert changed_ids(reader) == list(range(20, 40))
    reader.advance(reached)
    with store.cut() as cut:
        train(session, store, [5, 6, 7, 8], 2)
        later = store.open_reader("later", at=cut.mark)
    assert changed_ids(later) == changed_ids(reader) == [5, 6, 7, 8]


def changed_ids(reader: ChangeReader) -> list[int]:
    return sorted(key for block in reader.changes(state=True) for key in block.keys.tolist())


def test_a_block_of_wrong_ids_is_not_assigned(store: ServedStore) -> None:
    digest = store.schema.tables[1].digest
    block = build_block(BlockKind.FULL, digest=digest, table=1, bucket=3, epoch=0, rows=[(1, 0, bytes(8))])
    assert bucket_of_id(1) != 3
    with pytest.raises(InvalidArgumentError, match="of the block's own bucket"):
        store.assign(block, add=False)
    assert store.stats().rows == 0


def test_numbers_are_those_of_all_owners(store: ServedStore, servers: list[PsServer]) -> None:
    whole = LocalStore(TABLES)
    for each in (store, whole):
        train(each.join(0), each, list(range(100)), 0)
    ours, theirs = store.stats(), whole.stats()
    assert (ours.rows, ours.applied, ours.open_plans) == (theirs.rows, theirs.applied, theirs.open_plans)
    assert (ours.rows, ours.applied, ours.open_plans) == (100, {0: 0}, 0)
    assert ours.tables.keys() == theirs.tables.keys()
    assert ours.tables["item"].keys() == theirs.tables["item"].keys()
    assert ours.tables["item"]["rows"] == 100
    assert 0 < ours.tables["item"]["index_load"] <= 1
    parts = [server._service.stores.find(store.name).store.stats() for server in servers]
    assert ours.memory_bytes == sum(part.memory_bytes for part in parts)
