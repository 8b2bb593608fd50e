"""What is particular to rows in several shards; tests/contracts runs on them, too."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from monolith.tables import (
    BatchStamp,
    BlockKind,
    ChangeReader,
    LocalShards,
    LocalStore,
    OwnerClock,
    Plan,
    RowBlock,
    Segment,
    TableConfig,
    Update,
    WorkerSession,
)
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.row_optimizers import Adagrad, Sgd
from monolith.tables.store import Store
from monolith.testing.reference_format import bucket_of_id, build_block

DAY = 86400
TABLES = {
    "item": TableConfig([Segment(3, optimizer=Adagrad())], expire_days=2),
    "user": TableConfig([Segment(2, optimizer=Sgd())], expire_days=2, nonfinite="skip"),
}


def shards(num_shards: int, configs: Any = None) -> LocalShards:
    return LocalShards(TABLES if configs is None else configs, num_shards=num_shards)


def shard_of(key: int, num_shards: int) -> int:
    return bucket_of_id(key) * num_shards // 1024


def ids_of_shard(number: int, num_shards: int, count: int) -> list[int]:
    """Ids that this shard has."""
    return [key for key in range(200 * num_shards * count) if shard_of(key, num_shards) == number][:count]


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


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 1000, 1024])
def test_the_buckets_are_divided_as_ids_are(num_shards: int) -> None:
    owned = shards(num_shards, {"user": TableConfig([Segment(1)])}).owned
    assert [bucket for buckets in owned for bucket in buckets] == list(ALL_BUCKETS)
    assert all(bucket_of_id(key) in owned[shard_of(key, num_shards)] for key in range(2000))


@pytest.mark.parametrize("num_shards", [0, -1, 1025])
def test_a_number_of_shards_that_has_no_buckets_is_refused(num_shards: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"num_shards must be from 1 to 1024, got {num_shards}"):
        shards(num_shards)


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_a_plan_is_that_of_one_store(num_shards: int) -> None:
    random = np.random.default_rng(3)
    items, users = random.integers(-(2**63), 2**63 - 1, 40).tolist() * 2, random.integers(0, 30, 50).tolist()
    ours, whole = (plan_of(store, items, users, 0) for store in (shards(num_shards), LocalStore(TABLES)))
    assert ours.num_values == whole.num_values
    for name in ("unique_ids", "splits", "inverse", "counts", "tables"):
        assert torch.equal(getattr(ours, name), getattr(whole, name)), name
        assert getattr(ours, name).dtype == getattr(whole, name).dtype


def test_a_plan_of_another_store_is_refused() -> None:
    one, other = shards(2), shards(2)
    with pytest.raises(InvalidArgumentError, match=r"plan must come from this store's plan\(\), got ShardPlan"):
        one.read(plan_of(other, [1], [2], 0), step=0)
    with pytest.raises(InvalidArgumentError, match="got LocalPlan"):
        one.read(plan_of(LocalStore(TABLES), [1], [2], 0), step=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_gradient_that_one_shard_refuses_changes_no_shard(number: int, bad: float) -> None:
    store = shards(3)
    session = store.join(0)
    items = [key for each in range(3) for key in ids_of_shard(each, 3, 4)]
    train(session, store, items[::2], 0)
    before, rows = contents(store), store.stats().rows
    plan = plan_of(store, items, [], 1)
    gradient = torch.ones(len(items), 3)
    wrong = ids_of_shard(number, 3, 4)[3]
    gradient[plan.unique_ids == wrong] = bad
    session.read(plan, after=0, step=1, train=True).result()
    with pytest.raises(InvalidArgumentError, match=f"table 'item': the gradient of id {wrong} is not finite"):
        session.apply([(plan, gradient.view(-1))], rule(1))
    assert contents(store) == before
    assert (store.stats().rows, store.stats().open_plans) == (rows, 1)
    assert [shard.stats().applied for shard in store.shards] == [{0: 0}] * 3
    assert not session.apply([(plan, torch.ones(3 * len(items)))], rule(1)).result().duplicate
    assert [shard.stats().applied for shard in store.shards] == [{0: 1}] * 3


def test_what_becomes_infinite_by_the_scale_or_the_sum_is_refused_by_all() -> None:
    store = shards(3)
    items = [ids_of_shard(each, 3, 1)[0] for each in range(3)]
    huge = torch.full((9,), 3e38)
    huge[:6] = 1.0
    session = store.join(0)
    with pytest.raises(InvalidArgumentError, match="is not finite"):
        session.apply([(plan_of(store, items, [], 0), huge)], rule(0, scale=10.0))
    with pytest.raises(InvalidArgumentError, match="is not finite"):
        session.apply([(plan_of(store, items, [], seq), huge) for seq in (0, 1)], rule(0, known_finite=True))
    assert store.stats().rows == 0


def test_a_table_that_skips_does_so_in_every_shard() -> None:
    users = [ids_of_shard(each, 3, 1)[0] for each in range(3)]
    for store in (shards(3), LocalStore(TABLES)):
        plan = plan_of(store, [], users, 0)
        gradient = torch.ones(3, 2)
        gradient[1] = float("nan")
        applied = store.join(0).apply([(plan, gradient.view(-1))], rule(0)).result()
        assert (applied.updated, applied.skipped, applied.duplicate) == (2, 1, False)


def test_a_repeated_batch_is_skipped_unread() -> None:
    store = shards(3)
    session = store.join(0)
    train(session, store, [1, 2, 3], 0)
    plan = plan_of(store, [1, 2, 3], [], 0)
    assert session.apply([(plan, torch.full((9,), float("nan")))], rule(0)).result().duplicate


def test_times_go_with_their_ids() -> None:
    stores = (shards(4), LocalStore(TABLES))
    for store in stores:
        plans = [plan_of(store, list(range(10)), [3, 3], 0), plan_of(store, [2, 99, 2], list(range(5)), 1)]
        times = torch.arange(20) * 7 + 100
        pairs = [(plan, torch.ones(3 * 10 + 2 if number == 0 else 3 * 2 + 2 * 5)) for number, plan in enumerate(plans)]
        store.join(0).apply(pairs, rule(0, times=times)).result()
    assert contents(stores[0]) == contents(stores[1])
    plan = plan_of(stores[0], list(range(10)), [3, 3], 2)
    with pytest.raises(InvalidArgumentError, match=r"shape \(12,\) of ids, got \(3,\)"):
        stores[0].join(0).apply([(plan, torch.ones(32))], rule(1, times=torch.zeros(3, dtype=torch.int64)))


def test_the_time_of_a_single_id_is_its_own() -> None:
    for store in (shards(4), LocalStore(TABLES)):
        plan = plan_of(store, [8], [], 0)
        store.join(0).apply([(plan, torch.ones(3))], rule(0, times=torch.tensor([77]))).result()
        assert [time for time, _ in contents(store).values()] == [77]


def test_an_update_that_stopped_half_way_is_completed_by_repeating_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store, whole = shards(3), LocalStore(TABLES)
    train(whole.join(0), whole, list(range(30)), 0)
    session = store.join(0)
    plan = plan_of(store, list(range(30)), [], 0)

    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(session._parts[1], "commit", fail)
        with pytest.raises(MemoryError):
            session.apply([(plan, torch.ones(90))], rule(0))
    assert 0 < store.stats().rows < 30
    assert store.stats().applied == {}
    clocks = store.cut()
    assert [clock.stamps.keys() for clock in clocks.applied] == [{0}, set(), set()]
    clocks.release()
    again = store.join(0)
    assert (again.applied, again.next_seq) == (None, 1)
    assert not again.apply([(plan, torch.ones(90))], rule(0)).result().duplicate
    assert contents(store) == contents(whole)
    assert again.apply([(plan, torch.ones(90))], rule(0)).result().duplicate


def test_clocks_that_differ_are_not_given_to_one_owner() -> None:
    clocks = [
        OwnerClock(range(512), {0: BatchStamp(worker=0, seq=6)}),
        OwnerClock(range(512, 1024), {0: BatchStamp(worker=0, seq=5)}),
    ]
    for store in (shards(1), shards(3), LocalStore(TABLES)):
        with pytest.raises(FailedPreconditionError, match=r"worker 0's batches .* different ones of them, \[6, 5\]"):
            store.resume(applied=clocks, generation=0)
    two = shards(2)
    two.resume(applied=clocks, generation=0)
    session = two.join(0)
    assert (session.next_seq, session.applied) == (7, BatchStamp(worker=0, seq=5))


def test_expiry_counts_from_the_newest_time_of_all_shards() -> None:
    store = shards(3)
    old, new = ids_of_shard(0, 3, 2), ids_of_shard(2, 3, 1)
    session = store.join(0)
    for seq, day in enumerate(range(1, 11)):
        train(session, store, old if day == 1 else new, seq, time=day * DAY)
        assert store.stats().rows == (2 if day == 1 else 3 if day == 2 else 1)
    assert [key for _, key in contents(store)] == new


def test_a_damaged_block_of_the_last_shard_changes_no_shard() -> None:
    source, target = shards(3), shards(3)
    train(source.join(0), source, list(range(60)), 0)
    cut = source.cut()
    blocks = list(cut.blocks(ALL_BUCKETS, state=True))
    cut.release()
    damaged = bytearray(blocks[-1].data)
    damaged[-5] ^= 1
    train(target.join(0), target, [1000], 0)
    before = contents(target)
    for replace in (False, True):
        with pytest.raises(DataLossError):
            target.load([*blocks[:-1], RowBlock(bytes(damaged))], buckets=ALL_BUCKETS, replace=replace)
    assert contents(target) == before
    report = target.load(iter(blocks), buckets=range(100, 900), replace=True)
    inside = sum(block.count for block in blocks if 100 <= block.bucket < 900)
    assert (report.rows, report.ignored) == (inside, 60 - inside)


def test_a_cut_holds_all_shards_and_fails_atomically() -> None:
    store = shards(3)
    train(store.join(0), store, list(range(30)), 0)
    cut = store.cut()
    assert [clock.buckets for clock in cut.applied] == list(store.owned)
    assert all(clock.stamps == {0: BatchStamp(worker=0, seq=0)} for clock in cut.applied)
    with pytest.raises(FailedPreconditionError):
        store.cut()
    cut.release()


def test_a_cut_that_one_shard_rejects_leaves_the_history_intact() -> None:
    store = shards(3)
    session = store.join(0)
    train(session, store, list(range(30)), 0)
    held = store.shards[2].cut()
    for _ in range(3):
        with pytest.raises(FailedPreconditionError):
            store.cut()
    held.release()
    reader = store.open_reader("follower")
    train(session, store, list(range(20, 40)), 1)
    reached = reader.next_mark()
    assert changed_ids(reader) == list(range(20, 40))
    reader.advance(reached)
    cut = store.cut()
    train(session, store, [5, 6, 7, 8], 2)
    later = store.open_reader("later", at=cut.mark)
    cut.release()
    assert changed_ids(later) == changed_ids(reader) == [5, 6, 7, 8]


def changed_ids(reader: ChangeReader) -> list[int]:
    return sorted(key for block in reader.changes(state=True) for key in block.keys.tolist())


def test_a_block_of_wrong_ids_is_not_assigned() -> None:
    store = shards(3)
    digest = store.schema.tables[1].digest
    block = build_block(BlockKind.FULL, digest=digest, table=1, bucket=3, epoch=0, rows=[(1, 0, bytes(8))])
    assert bucket_of_id(1) != 3
    with pytest.raises(InvalidArgumentError, match="of the block's own bucket"):
        store.assign(block, add=False)
    assert store.stats().rows == 0


def test_a_cap_is_divided() -> None:
    store = shards(4, {"user": TableConfig([Segment(1)], max_rows=40)})
    ids = torch.arange(4000)
    plan = store.plan(ids, torch.tensor([0, 4000]), stamp=BatchStamp(worker=0, seq=0))
    rule = Update(previous=-1, step=0, learning_rates=torch.ones(1), times=0)
    store.join(0).apply([(plan, torch.ones(4000))], rule).result()
    assert store.stats().rows <= 40
    assert all(shard.stats().rows <= 10 for shard in store.shards)


def test_numbers_are_those_of_all_shards() -> None:
    store, whole = shards(3), LocalStore(TABLES)
    for each in (store, whole):
        train(each.join(0), each, list(range(100)), 0)
    ours, theirs = store.stats(), whole.stats()
    assert (ours.rows, ours.applied, ours.open_plans) == (theirs.rows, theirs.applied, theirs.open_plans)
    assert (ours.rows, ours.applied, ours.open_plans) == (100, {0: 0}, 0)
    assert ours.tables.keys() == theirs.tables.keys()
    assert ours.tables["item"].keys() == theirs.tables["item"].keys()
    assert ours.tables["item"]["rows"] == 100
    assert 0 < ours.tables["item"]["index_load"] <= 1
    assert ours.memory_bytes == sum(shard.stats().memory_bytes for shard in store.shards)


def test_a_cut_concurrent_with_updates_holds_complete_updates() -> None:
    """Every update adds one to all rows of all shards: a cut in which two rows differ has torn one apart."""
    store = LocalShards({"user": TableConfig([Segment(1)])}, num_shards=3)
    ids = torch.arange(50)
    gone_wrong: list[Exception] = []
    session = store.join(0)

    def step(seq: int) -> None:
        plan = session.plan(ids, torch.tensor([0, 50]), stamp=BatchStamp(worker=0, seq=seq))
        rule = Update(previous=seq - 1, step=seq, learning_rates=torch.ones(1), times=0)
        session.apply([(plan, -torch.ones(50))], rule).result()

    def go_on() -> None:
        try:
            for seq in range(1, 200):
                step(seq)
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            gone_wrong.append(error)

    step(0)
    trainer = threading.Thread(target=go_on)
    trainer.start()
    cuts = 0
    while trainer.is_alive():
        cut = store.cut()
        blocks = [block for block in cut.blocks(ALL_BUCKETS, state=True) if block.kind is BlockKind.FULL]
        values = {float(value) for block in blocks for value in block.weights(1)[:, 0]}
        assert [values] * 3 == [{clock.stamps[0].seq + 1.0} for clock in cut.applied]
        cut.release()
        cuts += 1
    trainer.join()
    assert not gone_wrong
    assert cuts
