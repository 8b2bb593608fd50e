"""Blocks and files that go from one store to another, and how a store goes on from them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from contracts.engines import StoreFactory
from contracts.one_worker import DAY, ONE_TABLE, Worker, blocks_of, rows_of, stamp
from monolith import _core
from monolith.errors import (
    CancelledError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from monolith.tables import BatchStamp, LocalStore, Segment, Store, TableConfig, Update, snapshot
from monolith.tables.formats.row_block import RowBlock
from monolith.tables.history import ALL_BUCKETS, OwnerClock, SnapshotWriteConfig
from monolith.tables.row_optimizers import Adagrad
from monolith.tables.snapshot import bucket_file
from monolith.testing.reference_format import bucket_of_id

HALF = range(512)
OTHER_HALF = range(512, 1024)
RULES = SnapshotWriteConfig(snapshot_id=7)


def write(store: Store, folder: Path) -> None:
    with store.cut() as cut:
        snapshot.save_cut(cut, store.schema, folder, snapshot_id=7, drop_expired=False)


def rows_in(blocks: Iterable[RowBlock]) -> dict[int, bytes]:
    return {key: row.tobytes() for block in blocks for key, row in zip(block.keys.tolist(), block.payload, strict=True)}


# Blocks


def test_load_reads_only_the_requested_buckets(new_store: StoreFactory) -> None:
    source, target = new_store(ONE_TABLE), new_store(ONE_TABLE)
    Worker(source).train(list(range(200)))
    blocks = blocks_of(source)
    report = target.load(blocks, buckets=HALF, replace=False)
    inside = sum(block.count for block in blocks if block.bucket in HALF)
    assert (report.rows, report.ignored) == (inside, 200 - inside)
    assert target.stats().rows == inside


def test_load_with_replace_empties_the_buckets_first(new_store: StoreFactory) -> None:
    source, target = new_store(ONE_TABLE), new_store(ONE_TABLE)
    Worker(source).train([1, 2])
    Worker(target).train([2, 3], 5.0)
    target.load(blocks_of(source), buckets=ALL_BUCKETS, replace=True)
    assert rows_of(target, [1, 2, 3]) == [[-1.0, -1.0], [-1.0, -1.0], [0.0, 0.0]]
    assert target.stats().rows == 2


def test_load_without_replace_overwrites_existing_rows(new_store: StoreFactory) -> None:
    source, target = new_store(ONE_TABLE), new_store(ONE_TABLE)
    Worker(source).train([1, 2])
    Worker(target).train([2, 3], 5.0)
    target.load(blocks_of(source), buckets=ALL_BUCKETS, replace=False)
    assert rows_of(target, [1, 2, 3]) == [[-1.0, -1.0], [-1.0, -1.0], [-5.0, -5.0]]


def test_rows_are_not_replaced_while_a_cut_is_open(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    Worker(store).train([1])
    with store.cut(), pytest.raises(FailedPreconditionError, match="cut is open"):
        store.load([], buckets=ALL_BUCKETS, replace=True)
    assert rows_of(store, [1]) == [[-1.0, -1.0]]


@pytest.mark.parametrize("replace", [False, True])
def test_a_damaged_block_changes_nothing(new_store: StoreFactory, *, replace: bool) -> None:
    source, target = new_store(ONE_TABLE), new_store(ONE_TABLE)
    Worker(source).train([1, 2])
    Worker(target).train([2, 3], 5.0)
    blocks = blocks_of(source)
    damaged = bytearray(blocks[-1].data)
    damaged[56] ^= 1
    with pytest.raises(DataLossError):
        target.load([*blocks[:-1], RowBlock(bytes(damaged))], buckets=ALL_BUCKETS, replace=replace)
    assert rows_of(target, [1, 2, 3]) == [[0.0, 0.0], [-5.0, -5.0], [-5.0, -5.0]]


@pytest.mark.parametrize("replace", [False, True])
def test_rows_of_another_schema_change_nothing(new_store: StoreFactory, *, replace: bool) -> None:
    source = new_store({"user": TableConfig([Segment(2, optimizer=Adagrad())])})
    target = new_store(ONE_TABLE)
    Worker(source).train([1])
    Worker(target).train([1], 5.0)
    with pytest.raises(FailedPreconditionError, match="schema"):
        target.load(blocks_of(source), buckets=ALL_BUCKETS, replace=replace)
    with pytest.raises(FailedPreconditionError, match="schema"):
        target.assign(blocks_of(source)[0], add=False)
    assert rows_of(target, [1]) == [[-5.0, -5.0]]


def test_newest_times_reset_when_all_rows_are_replaced(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1])
    blocks = blocks_of(store)
    worker.train([2], time=30 * DAY)
    store.load(blocks, buckets=ALL_BUCKETS, replace=True)
    assert worker.session.evict(now=-1) == 0, "what came 30 days later has not happened"


# Files


def test_a_cut_writes_files_that_hold_all_its_rows(new_store: StoreFactory, tmp_path: Path) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train(list(range(100)), time=3)
    with store.cut() as cut:
        worker.train(list(range(90, 120)), time=5)
        written = cut.write(str(tmp_path), SnapshotWriteConfig(snapshot_id=7, num_files=8))
        with pytest.raises(FailedPreconditionError):
            cut.blocks(ALL_BUCKETS, state=True)
    assert (dict(written.rows), dict(written.newest_times)) == ({"user": 100}, {"user": 3})
    assert sum(file.rows for file in written.files) == 100
    assert [file.begin for file in written.files[1:]] == [file.end for file in written.files[:-1]]
    assert (written.files[0].begin, written.files[-1].end) == (0, 1024)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(file.name for file in written.files)
    for file in written.files:
        assert (tmp_path / file.name).stat().st_size == file.bytes


def test_expired_rows_can_be_dropped_from_files_and_stay_in_the_store(new_store: StoreFactory, tmp_path: Path) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1, 2], time=0)
    worker.train([2, 3], time=2 * DAY)
    with store.cut() as cut:
        written = cut.write(str(tmp_path), SnapshotWriteConfig(snapshot_id=7, drop_expired=True))
    assert dict(written.rows) == {"user": 2}
    assert store.stats().rows == 3


def test_a_cancelled_write_leaves_no_files(new_store: StoreFactory, tmp_path: Path) -> None:
    store = new_store(ONE_TABLE)
    Worker(store).train(list(range(100)))
    transfer = _core.Transfer()
    transfer.cancel()
    with store.cut() as cut, pytest.raises((FailedPreconditionError, CancelledError), match="cancelled"):
        cut.write(str(tmp_path), RULES, transfer=transfer)
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written_leave_the_store_as_it_was(new_store: StoreFactory, tmp_path: Path) -> None:
    store = new_store(ONE_TABLE)
    Worker(store).train([1])
    with store.cut() as cut, pytest.raises(Exception, match="nowhere"):
        cut.write(str(tmp_path / "nowhere"), RULES)
    Worker(store).train([1])
    assert rows_of(store, [1]) == [[-2.0, -2.0]]


def test_a_restore_replaces_existing_rows_once_it_is_loaded(new_store: StoreFactory, tmp_path: Path) -> None:
    source, target = new_store(ONE_TABLE), new_store(ONE_TABLE)
    Worker(source).train([1, 2], time=4)
    Worker(target).train([2, 3], 5.0, time=9 * DAY)
    write(source, tmp_path)
    manifest = snapshot.read_manifest(tmp_path)
    with target.prepare_restore(str(tmp_path), manifest, buckets=ALL_BUCKETS):
        assert rows_of(target, [1, 2, 3]) == [[0.0, 0.0], [-5.0, -5.0], [-5.0, -5.0]]
    assert rows_of(target, [1, 2, 3]) == [[0.0, 0.0], [-5.0, -5.0], [-5.0, -5.0]]
    with target.prepare_restore(str(tmp_path), manifest, buckets=ALL_BUCKETS) as prepared:
        report = prepared.load()
    assert (dict(report.rows), report.missing_tables, report.ignored_tables) == ({"user": 2}, (), ())
    assert rows_of(target, [1, 2, 3]) == [[-1.0, -1.0], [-1.0, -1.0], [0.0, 0.0]]
    target.resume(applied=report.applied, generation=report.generation)
    assert Worker(target).session.evict(now=-1) == 0


def test_an_abandoned_restore_leaves_an_empty_store_empty(new_store: StoreFactory, tmp_path: Path) -> None:
    source, target = new_store(ONE_TABLE), new_store(ONE_TABLE)
    Worker(source).train([1, 2])
    write(source, tmp_path)
    with target.prepare_restore(str(tmp_path), snapshot.read_manifest(tmp_path), buckets=ALL_BUCKETS):
        pass
    assert target.stats().rows == 0


def test_a_restore_of_some_buckets_leaves_the_others(new_store: StoreFactory, tmp_path: Path) -> None:
    source, target = new_store(ONE_TABLE), new_store(ONE_TABLE)
    ids = list(range(40))
    Worker(source).train(ids)
    Worker(target).train(ids, 5.0)
    write(source, tmp_path)
    report = snapshot.restore(target, tmp_path, buckets=OTHER_HALF)
    restored = [bucket_of_id(key) in OTHER_HALF for key in ids]
    assert rows_of(target, ids) == [[-1.0, -1.0] if each else [-5.0, -5.0] for each in restored]
    assert dict(report.rows) == {"user": sum(restored)}


def test_tables_are_matched_by_name(new_store: StoreFactory, tmp_path: Path) -> None:
    config = ONE_TABLE["user"]
    source, target = new_store({"gone": config, "user": config}), new_store({"new": config, "user": config})
    worker = source.join(0)
    plan = worker.plan(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3]), stamp=stamp(0))
    rule = Update(previous=-1, step=0, learning_rates=torch.ones(2), times=0)
    worker.apply([(plan, torch.ones(plan.num_values))], rule).result()
    write(source, tmp_path)
    with pytest.raises(FailedPreconditionError, match="gone"):
        snapshot.restore(target, tmp_path)
    report = snapshot.restore(target, tmp_path, ignore_unknown_tables=True)
    assert (report.missing_tables, report.ignored_tables) == (("new",), ("gone",))
    assert dict(report.rows) == {"new": 0, "user": 2}
    assert target.stats().tables["user"]["rows"] == 2


@pytest.mark.parametrize("damage", ["flipped", "short", "missing", "foreign"])
def test_a_damaged_or_foreign_file_changes_nothing(new_store: StoreFactory, tmp_path: Path, damage: str) -> None:
    source, target = new_store(ONE_TABLE), new_store(ONE_TABLE)
    Worker(source).train(list(range(30)))
    Worker(target).train([1], 5.0)
    write(source, tmp_path)
    file = tmp_path / snapshot.read_manifest(tmp_path).files[0].name
    data = bytearray(file.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 4
        file.write_bytes(data)
    elif damage == "short":
        file.write_bytes(data[:-9])
    elif damage == "missing":
        file.unlink()
    else:
        write(new_store({"user": TableConfig([Segment(3)])}), tmp_path)
    expected = {"missing": NotFoundError, "foreign": FailedPreconditionError}.get(damage, DataLossError)
    with pytest.raises(expected):
        snapshot.restore(target, tmp_path)
    assert rows_of(target, [1, 2]) == [[-5.0, -5.0], [0.0, 0.0]]
    assert target.stats().rows == 1


def test_files_of_any_engine_are_read_by_any_other(new_store: StoreFactory, tmp_path: Path) -> None:
    ours = new_store(ONE_TABLE)
    Worker(ours).train(list(range(50)), 0.5)
    write(ours, tmp_path)
    found = rows_in(bucket_file.read_blocks(tmp_path))
    assert found == rows_in(blocks_of(ours))
    assert len(found) == 50
    other = LocalStore(ONE_TABLE)
    snapshot.restore(other, tmp_path)
    assert rows_in(blocks_of(other)) == found
    write(other, tmp_path / "other")
    snapshot.restore(ours, tmp_path / "other")
    assert rows_in(blocks_of(ours)) == found


# Going on


def test_a_resumed_store_continues_after_the_saved_batches(new_store: StoreFactory, tmp_path: Path) -> None:
    source, target = new_store(ONE_TABLE), new_store(ONE_TABLE)
    for number in (0, 5):
        Worker(source, number).train([1])
    write(source, tmp_path)
    report = snapshot.restore(target, tmp_path)
    target.resume(applied=report.applied, generation=report.generation)
    assert target.stats().applied == {0: 0, 5: 0}
    worker = Worker(target, 5)
    assert (worker.session.applied, worker.session.next_seq) == (stamp(0, 5), 1)
    assert worker.push(worker.plan([1], 0), previous=-1).duplicate
    with pytest.raises(FailedPreconditionError, match="last one applied here is 0"):
        worker.push(worker.plan([1], 1), previous=-1)
    worker.train([1])
    assert rows_of(target, [1]) == [[-3.0, -3.0]]


def test_workers_of_before_a_resume_are_refused(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    former = Worker(store)
    former.train([1])
    store.resume(applied=(OwnerClock(ALL_BUCKETS, {0: stamp(4), 2: stamp(9, 2)}),), generation=0)
    with pytest.raises(FailedPreconditionError, match="join again"):
        former.train([1])
    assert store.stats().applied == {0: 4, 2: 9}
    assert Worker(store, 2).session.applied == stamp(9, 2)
    assert Worker(store, 7).session.applied is None


def test_clocks_of_several_owners_become_one_where_they_agree(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    agreed = {0: stamp(3), 1: stamp(8, 1)}
    store.resume(applied=(OwnerClock(HALF, agreed), OwnerClock(OTHER_HALF, agreed)), generation=0)
    with store.cut() as cut:
        assert all(dict(clock.stamps) == agreed for clock in cut.applied)


@pytest.mark.parametrize("other", [{0: stamp(4)}, {}, {0: stamp(3), 1: stamp(0, 1)}])
def test_clocks_that_differ_inside_an_owner_are_refused(new_store: StoreFactory, other: dict[int, BatchStamp]) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1])
    uneven = range(3), range(3, 1024)
    clocks = (OwnerClock(uneven[0], {0: stamp(3)}), OwnerClock(uneven[1], other))
    with pytest.raises(FailedPreconditionError, match=r"worker [01]'s batches .* different"):
        store.resume(applied=clocks, generation=0)
    worker.train([1])  # nothing has changed
    assert store.stats().applied == {0: 1}


def test_buckets_to_load_must_be_some(new_store: StoreFactory) -> None:
    with pytest.raises(InvalidArgumentError, match="buckets must be"):
        new_store(ONE_TABLE).load([], buckets=range(5, 2000), replace=False)
