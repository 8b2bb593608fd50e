"""What is saved comes back: rows, state, times, filters, tombstones, whatever the number of files and owners."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest

from monolith import _core
from monolith.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from monolith.tables import (
    BatchStamp,
    HashTable,
    OwnerClock,
    Segment,
    TableConfig,
    TableGroup,
    compressors,
    row_optimizers,
)
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.snapshot import read_manifest, restore, save, verify
from monolith.tables.snapshot.manifest import Json
from tables.snapshot_cases import (
    DAY,
    EXTREME_IDS,
    filtered_table,
    group_state,
    item_config,
    some_ids,
    state_of,
    train,
    trained_group,
    two_tables,
    user_config,
)


@pytest.mark.parametrize("num_files", [1, 2, 3, 7, 1024, None])
def test_a_group_is_restored_bit_for_bit_from_any_number_of_files(tmp_path: Path, num_files: int | None) -> None:
    group, restored = trained_group(), two_tables()
    report = save(group.store, tmp_path, num_files=num_files)
    loaded = restore(restored.store, tmp_path)
    assert group_state(restored) == group_state(group)
    assert report.rows == loaded.rows == {name: len(group[name]) for name in group.names}
    assert report.num_files == (num_files or 1)
    assert [restored[name].newest_time for name in group.names] == [500, 2000]


def test_extreme_ids_are_ids_like_others(tmp_path: Path) -> None:
    table, restored = HashTable(user_config()), HashTable(user_config())
    train(table, EXTREME_IDS)
    save(table.store, tmp_path)
    restore(restored.store, tmp_path)
    assert state_of(restored) == state_of(table)
    assert set(state_of(restored)) == set(EXTREME_IDS.tolist())


def test_an_empty_group_is_a_snapshot_too(tmp_path: Path) -> None:
    report = save(two_tables().store, tmp_path)
    assert report.rows == {"item": 0, "user": 0}
    restored = trained_group()
    restore(restored.store, tmp_path)
    assert group_state(restored) == {"item": {}, "user": {}}


def test_restore_replaces_what_the_group_held(tmp_path: Path) -> None:
    group = trained_group()
    save(group.store, tmp_path)
    expected = group_state(group)
    train(group["user"], some_ids(300, seed=99), time=9000)
    group["item"].erase(group["item"].ids())
    restore(group.store, tmp_path)
    assert group_state(group) == expected


@pytest.mark.parametrize("owners", [1, 2, 3, 5])
@pytest.mark.parametrize("num_files", [1, 4])
def test_owners_together_hold_exactly_what_one_saved(tmp_path: Path, owners: int, num_files: int) -> None:
    group = trained_group()
    save(group.store, tmp_path, num_files=num_files)
    bounds = np.linspace(0, _core.NUM_BUCKETS, owners + 1).astype(int).tolist()
    together: dict[str, dict[int, tuple[bytes, bytes, int]]] = {name: {} for name in group.names}
    for begin, end in itertools.pairwise(bounds):
        part = two_tables()
        restore(part.store, tmp_path, buckets=range(begin, end))
        for name, rows in group_state(part).items():
            buckets = _core.bucket_of(np.array(list(rows), np.int64))
            assert ((buckets >= begin) & (buckets < end)).all()
            assert not together[name].keys() & rows.keys()
            together[name].update(rows)
    assert together == group_state(group)


def test_restoring_some_buckets_leaves_the_others_alone(tmp_path: Path) -> None:
    group, other = trained_group(), two_tables()
    save(group.store, tmp_path, num_files=3)
    ids = some_ids(400, seed=5)
    train(other["user"], ids, time=77)
    before = state_of(other["user"])
    restore(other.store, tmp_path, buckets=range(100, 200))
    inside = {key for key in before if 100 <= int(_core.bucket_of(np.array([key]))[0]) < 200}
    after = state_of(other["user"])
    assert {key: row for key, row in before.items() if key not in inside}.items() <= after.items()
    assert not any(after[key][2] == 77 for key in inside & after.keys())


def test_only_files_of_wanted_buckets_are_needed(tmp_path: Path) -> None:
    group = trained_group()
    save(group.store, tmp_path, num_files=4)
    last = read_manifest(tmp_path).files[-1]
    (tmp_path / last.name).unlink()
    restore(two_tables().store, tmp_path, buckets=range(last.begin))
    with pytest.raises(NotFoundError, match=last.name):
        restore(two_tables().store, tmp_path)


def test_filter_counts_are_restored(tmp_path: Path) -> None:
    table, restored = filtered_table(), filtered_table()
    ids = np.arange(50)
    ones = np.ones((50, 2), np.float32)
    for _ in range(3):
        table.apply_gradients(ids, ones)
    assert len(table) == 0
    save(table.store, tmp_path)
    restore(restored.store, tmp_path)
    restored.apply_gradients(ids, ones)
    assert len(restored) == 50, "the fourth occurrence is the first one trained"


def test_tombstones_are_restored(tmp_path: Path) -> None:
    group, restored, deaf = trained_group(), two_tables(), two_tables()
    for followed in (group, restored):
        followed.mark()  # without anybody who follows it a table remembers no removal
    removed = some_ids(500)[:20]
    group["user"].erase(removed)
    save(group.store, tmp_path)
    for each in (restored, deaf):
        restore(each.store, tmp_path)
    assert np.array_equal(restored["user"].tombstones().numpy(), np.sort(removed))
    assert len(deaf["user"].tombstones()) == 0


def test_newest_time_is_restored_even_when_its_row_is_deleted(tmp_path: Path) -> None:
    table, restored = HashTable(user_config()), HashTable(user_config())
    train(table, np.array([1]), time=1000)
    train(table, np.array([2]), time=5000)
    table.erase(np.array([2]))
    save(table.store, tmp_path)
    restore(restored.store, tmp_path)
    assert restored.newest_time == 5000


def expiring_table() -> HashTable:
    return HashTable(
        TableConfig([Segment(1)], name="short", expire_days=2, slot_expire_days={1: 10}, evict_every_seconds=0)
    )


@pytest.mark.parametrize("drop_expired", [True, False])
def test_expired_rows_are_skipped_in_the_files_and_stay_in_the_table(tmp_path: Path, drop_expired: bool) -> None:
    table = expiring_table()
    one = np.ones((1, 1), np.float32)
    of_slot_1 = 1 << 48
    for key, time in ((1, 0), (2, DAY), (3, 2 * DAY), (of_slot_1, 0)):
        table.apply_gradients(np.array([key]), one, time=time)
    save(table.store, tmp_path, drop_expired=drop_expired)
    assert len(table) == 4
    restored = expiring_table()
    restore(restored.store, tmp_path)
    expected = {2, 3, of_slot_1} if drop_expired else {1, 2, 3, of_slot_1}
    assert set(state_of(restored)) == expected, "id 1 was last updated exactly two days before the newest time"


def serving_twin(config: TableConfig) -> TableConfig:
    return TableConfig(config.segments, name=config.name, serving=True)


def half_config() -> TableConfig:
    half = Segment(3, optimizer=row_optimizers.Adagrad(learning_rate=0.1), compressor=compressors.Fp16())
    return TableConfig([half], name="half")


@pytest.mark.parametrize("state", [True, False])
def test_a_serving_table_takes_the_weights_of_a_training_table(tmp_path: Path, state: bool) -> None:
    table, serving = HashTable(half_config()), HashTable(serving_twin(half_config()))
    ids = some_ids(200)
    train(table, ids)
    save(table.store, tmp_path, state=state)
    restore(serving.store, tmp_path)
    expected = np.asarray(table.lookup(ids)).astype(np.float16).astype(np.float32)
    assert np.array_equal(np.asarray(serving.lookup(ids)), expected)
    assert np.array_equal(np.asarray(serving.lookup_rows(ids).time), np.asarray(table.lookup_rows(ids).time))


def test_a_serving_table_is_restored_as_it_was(tmp_path: Path) -> None:
    serving, restored = HashTable(serving_twin(half_config())), HashTable(serving_twin(half_config()))
    ids = some_ids(200)
    serving.assign(ids, np.random.default_rng(3).normal(size=(len(ids), 3)).astype(np.float32), time=9)
    save(serving.store, tmp_path)
    restore(restored.store, tmp_path)
    assert state_of(restored) == state_of(serving)


def test_the_state_at_the_call_is_saved_while_writers_keep_running(tmp_path: Path) -> None:
    group = trained_group(2000)
    expected = group_state(group)
    stop = threading.Event()

    def disturb() -> None:
        seed = 0
        while not stop.is_set():
            seed += 1
            train(group["user"], some_ids(500, seed=seed % 5), seed=seed, time=3000)
            group["item"].erase(group["item"].ids()[:10])

    writers = [threading.Thread(target=disturb) for _ in range(2)]
    handle = save(group.store, tmp_path, background=True, rate_bytes_per_second=2_000_000)
    for writer in writers:
        writer.start()
    handle.wait(50)
    stop.set()
    for writer in writers:
        writer.join()
    restored = two_tables()
    restore(restored.store, tmp_path)
    assert group_state(restored) == expected


def test_a_background_save_reports_its_progress_and_its_end(tmp_path: Path) -> None:
    group = trained_group()
    handle = save(group.store, tmp_path, background=True, rate_bytes_per_second=400_000)
    with pytest.raises(DeadlineExceededError, match="it keeps running"):
        handle.wait(0.01)
    finished_early = handle.done
    assert not finished_early
    assert any(thread.name.startswith("monolith-save") and not thread.daemon for thread in threading.enumerate())
    report = handle.wait(30)
    assert handle.done
    assert handle.progress.bytes_written > 0
    assert handle.progress.fraction == 1.0
    assert report.seconds > 0.1
    assert handle.wait(0) == report


def test_a_cancelled_save_leaves_the_snapshot_before_it(tmp_path: Path) -> None:
    group = trained_group()
    save(group.store, tmp_path, extra={"number": 1})
    handle = save(group.store, tmp_path, background=True, rate_bytes_per_second=50_000, extra={"number": 2})
    handle.cancel()
    with pytest.raises(CancelledError):
        handle.wait(30)
    assert read_manifest(tmp_path).extra == {"number": 1}
    assert len(list(tmp_path.iterdir())) == 2
    save(group.store, tmp_path, extra={"number": 3})
    assert verify(two_tables().store, tmp_path).extra == {"number": 3}


def test_a_save_replaces_the_snapshot_before_it_and_removes_its_files(tmp_path: Path) -> None:
    group = trained_group()
    save(group.store, tmp_path, num_files=5)
    (tmp_path / "notes.txt").write_text("of someone else")
    (tmp_path / "buckets-0000-1024-0123456789abcdef.rows.tmp").write_text("of a killed save")
    save(group.store, tmp_path, num_files=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 4
    assert "notes.txt" in names


def test_what_the_caller_gave_is_restored(tmp_path: Path) -> None:
    group = trained_group()
    extra: Json = {"step": 10**15, "rate": 0.1, "text": "käse", "list": [1, 2.5, True, None, {}]}
    save(group.store, tmp_path, extra=extra, generation=4)
    report = restore(two_tables().store, tmp_path)
    assert (report.extra, report.generation) == (extra, 4)


def test_what_was_applied_of_every_worker_is_restored(tmp_path: Path) -> None:
    group = trained_group()
    stamps = {
        worker: BatchStamp(worker=worker, seq=5 + worker, position=b"\xff at %d" % worker, event_time_ms=1234)
        for worker in (0, 7, 2**62)
    }
    group.store.resume(applied=[OwnerClock(ALL_BUCKETS, stamps)], generation=0)
    save(group.store, tmp_path)
    assert restore(two_tables().store, tmp_path).applied == (OwnerClock(ALL_BUCKETS, stamps),)


def test_a_lower_generation_does_not_replace_a_higher_one(tmp_path: Path) -> None:
    group = trained_group()
    save(group.store, tmp_path, generation=4)
    with pytest.raises(FailedPreconditionError, match="generation 4, which a save of generation 3 must not replace"):
        save(group.store, tmp_path, generation=3)
    save(group.store, tmp_path, generation=4)
    save(group.store, tmp_path, generation=5)
    assert read_manifest(tmp_path).generation == 5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_files": 0}, "num_files must be from 1 to 1024, got 0"),
        ({"num_files": 1025}, "num_files must be from 1 to 1024, got 1025"),
        ({"rate_bytes_per_second": 0.0}, "rate_bytes_per_second must be at least 1"),
        ({"rate_bytes_per_second": float("nan")}, "rate_bytes_per_second must be at least 1"),
        ({"generation": -1}, "generation must not be negative"),
        ({"extra": {"x": float("nan")}}, "extra must be made of plain JSON values"),
        ({"extra": {1: 2}}, "extra must be made of plain JSON values"),
        ({"extra": (1, 2)}, "extra must be made of plain JSON values"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        save(trained_group().store, tmp_path / "new", **options)  # type: ignore[call-overload]
    assert not (tmp_path / "new").exists()


def test_an_unknown_option_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="num_fils"):
        save(trained_group().store, tmp_path, num_fils=2)  # type: ignore[call-overload]


def test_a_second_cut_is_refused_and_the_folder_is_free_again(tmp_path: Path) -> None:
    group = trained_group()
    with group.cut(), pytest.raises(FailedPreconditionError, match="cut is open"):
        save(group.store, tmp_path)
    save(group.store, tmp_path)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    group, other = trained_group(), trained_group()
    save(group.store, tmp_path)
    handle = save(group.store, tmp_path, background=True, rate_bytes_per_second=200_000)
    with pytest.raises(UnavailableError, match="being read or written by another"):
        save(other.store, tmp_path)
    with pytest.raises(UnavailableError, match="being written by another"):
        restore(other.store, tmp_path)
    handle.wait(30)
    restore(other.store, tmp_path)


def test_no_snapshot_is_not_found(tmp_path: Path) -> None:
    group = trained_group()
    before = group_state(group)
    for path in (tmp_path, tmp_path / "nowhere", Path(__file__)):
        with pytest.raises(NotFoundError, match="no snapshot here"):
            restore(group.store, path)
    assert group_state(group) == before


def test_wrong_buckets_are_refused(tmp_path: Path) -> None:
    save(trained_group().store, tmp_path)
    for buckets in (range(1025), range(-1, 5), range(0, 10, 2)):
        with pytest.raises(InvalidArgumentError, match="buckets must be a range"):
            restore(two_tables().store, tmp_path, buckets=buckets)


def test_no_buckets_are_none(tmp_path: Path) -> None:
    group = trained_group()
    save(group.store, tmp_path)
    before = group_state(group)
    assert sum(restore(group.store, tmp_path, buckets=range(5, 5)).rows.values()) == 0
    assert group_state(group) == before


def test_table_and_group_offer_save_and_restore(tmp_path: Path) -> None:
    table, restored = HashTable(item_config()), HashTable(item_config())
    train(table, some_ids(50))
    table.save(tmp_path / "table")
    restored.restore(tmp_path / "table")
    assert state_of(restored) == state_of(table)
    group = TableGroup({"item": item_config()})
    group.restore(tmp_path / "table")
    assert state_of(group["item"]) == state_of(table)
