"""History: marks, changes, tombstones and the cut, as a table's user sees them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import (
    BatchStamp,
    BlockKind,
    ChangePosition,
    ChangeReader,
    HashTable,
    OwnerClock,
    Segment,
    TableConfig,
    TableGroup,
)
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.row_optimizers import Adagrad, Sgd


def sgd_table() -> HashTable:
    return HashTable(TableConfig([Segment(1, optimizer=Sgd(learning_rate=1.0))], expire_days=1))


def changed_ids(table: HashTable | TableGroup, since: ChangePosition | None) -> list[int]:
    kinds = {BlockKind.FULL}
    return sorted(k for block in table.changes(since) if block.kind in kinds for k in block.keys.tolist())


def removed_ids(reader: ChangeReader) -> list[int]:
    blocks = [block for block in reader.changes(state=True) if block.kind is BlockKind.TOMBSTONE]
    return sorted(key for block in blocks for key in block.keys.tolist())


def test_changes_since_a_mark_are_what_was_written_after_it() -> None:
    table = sgd_table()
    table.assign([1, 2, 3], [[1.0]] * 3, time=1)
    first = table.mark()
    table.apply_gradients([2], [[1.0]], time=2)
    table.reinitialize([4], time=2)
    second = table.mark()
    table.assign_add([3], [[1.0]], time=3)
    assert changed_ids(table, None) == [1, 2, 3, 4]
    assert changed_ids(table, first) == [2, 3, 4]
    assert changed_ids(table, second) == [3]
    assert changed_ids(table, table.mark()) == []


def test_reading_is_no_change() -> None:
    table = sgd_table()
    table.assign([1], [[1.0]], time=1)
    mark = table.mark()
    table.lookup([1])
    table.lookup_rows([1])
    table.read(table.plan([1]))
    assert changed_ids(table, mark) == []


def test_a_change_carries_the_current_row_once() -> None:
    table = HashTable(TableConfig([Segment(2, optimizer=Adagrad(initial_accumulator_value=1.0))]))
    for second in range(3):
        table.apply_gradients([5], [[1.0, 2.0]], time=second)
    (block,) = table.changes()
    assert block.keys.tolist() == [5]
    assert block.times.tolist() == [2]
    rows = table.lookup_rows(np.array([5]))
    assert block.weights(2).tolist() == rows.weights.tolist()
    assert block.state(2).tolist() == rows.state.tolist()
    assert block.digest == table.schema.tables[0].digest
    assert "FULL" in repr(block)


def test_changes_of_some_buckets_are_part_of_all() -> None:
    table = sgd_table()
    table.assign(np.arange(500), np.ones((500, 1), np.float32), time=1)
    low = [k for block in table.changes(buckets=range(300)) for k in block.keys.tolist()]
    high = [k for block in table.changes(buckets=range(300, 1024)) for k in block.keys.tolist()]
    assert sorted(low + high) == list(range(500))
    assert low
    assert high


@pytest.mark.parametrize("buckets", [range(0, 10, 2), range(-1, 5), range(1025), range(9, 3)])
def test_buckets_that_are_no_range_of_the_1024_are_refused(buckets: range) -> None:
    with pytest.raises(InvalidArgumentError, match=r"buckets must be a range inside range\(1024\) of step 1"):
        sgd_table().changes(buckets=buckets)


def test_removed_ids_can_be_read_back() -> None:
    table = sgd_table()
    table.assign([1, 2, 3], [[1.0]] * 3, time=np.array([0, 0, 86400]))
    mark = table.mark()
    table.erase([2])
    table.evict()
    assert sorted(table.tombstones().tolist()) == [1, 2]
    later = table.mark()
    assert sorted(table.tombstones(mark).tolist()) == [1, 2]
    assert table.tombstones(later).tolist() == []
    removed = [k for block in table.changes(mark) if block.kind is BlockKind.TOMBSTONE for k in block.keys.tolist()]
    assert sorted(removed) == [1, 2]


def test_ids_removed_by_a_cap_can_be_read_back() -> None:
    table = HashTable(TableConfig([Segment(1)], max_rows=500))
    table.mark()
    ids = np.arange(1500)
    for second, part in enumerate(np.array_split(ids, 15)):
        table.assign(part, np.ones((len(part), 1), np.float32), time=second)
    assert sorted([*table.tombstones().tolist(), *table.ids().tolist()]) == ids.tolist()


def test_forgetting_drops_tombstones_and_the_history_before() -> None:
    table = sgd_table()
    table.assign([1, 2], [[1.0]] * 2, time=0)
    early = table.mark()
    table.erase([1])
    late = table.mark()
    table.erase([2])
    table.forget(late)
    assert table.tombstones(late).tolist() == [2]
    with pytest.raises(FailedPreconditionError, match="discarded"):
        list(table.changes(early))


def test_history_can_be_discarded_while_a_cut_is_open() -> None:
    table = sgd_table()
    table.assign([1, 2], [[1.0]] * 2, time=0)
    early = table.mark()
    table.erase([1])
    with table.cut() as cut:
        late = table.mark()
        table.forget(late)
        with pytest.raises(FailedPreconditionError, match="discarded"):
            table.changes(early)
        assert [key for block in cut.blocks() if block.kind is BlockKind.FULL for key in block.keys.tolist()] == [2]
    assert table.stats()["tombstones"] == 0


def test_a_cut_does_not_move_while_writers_keep_running() -> None:
    table = sgd_table()
    ids = np.arange(2000)
    table.assign(ids, np.ones((2000, 1), np.float32), time=1)
    stop = threading.Event()

    def write() -> None:
        second = 2
        while not stop.is_set():
            table.apply_gradients(ids[::3], np.ones((len(ids[::3]), 1), np.float32), time=second)
            table.erase(ids[1::3][:50])
            table.assign(ids + 10_000, np.ones((2000, 1), np.float32), time=second)
            second += 1

    with table.cut() as cut:
        writer = threading.Thread(target=write)
        writer.start()
        rows = {
            key: (time, weight)
            for block in cut.blocks()
            if block.kind is BlockKind.FULL
            for key, time, weight in zip(
                block.keys.tolist(), block.times.tolist(), block.weights(1)[:, 0].tolist(), strict=True
            )
        }
        stop.set()
        writer.join()
    assert rows == dict.fromkeys(range(2000), (1, 1.0))


def test_a_cut_is_a_mark() -> None:
    table = sgd_table()
    table.assign([1], [[1.0]], time=1)
    with table.cut() as cut:
        assert len(cut) == 1
        reader = table.store.open_reader("follower", at=cut.mark)
    table.assign([2], [[1.0]], time=1)
    assert [key for block in reader.changes(state=True) for key in block.keys.tolist()] == [2]


def test_changes_without_a_follower_are_not_recorded() -> None:
    table = sgd_table()
    ids = np.arange(1000)
    for day in range(5):
        table.assign(ids + 1000 * day, np.ones((1000, 1), np.float32), time=86400 * (1 + 3 * day))
        table.evict(86400 * (3 + 3 * day))
    assert (table.stats()["rows"], table.stats()["tombstones"]) == (0, 0)
    with table.cut() as cut:
        mark = cut.mark
    with pytest.raises(FailedPreconditionError, match="discarded"):
        table.store.open_reader("late", at=mark)


def test_removals_are_kept_for_the_slowest_reader_alone() -> None:
    table = sgd_table()
    table.assign(np.arange(30), np.ones((30, 1), np.float32), time=1)
    slow, fast = table.store.open_reader("slow"), table.store.open_reader("fast")
    table.erase(np.arange(10))
    fast.advance(fast.next_mark())
    table.erase(np.arange(10, 20))
    assert table.stats()["tombstones"] == 20
    assert removed_ids(fast) == list(range(10, 20))
    assert removed_ids(slow) == list(range(20))
    slow.advance(slow.next_mark())
    assert table.stats()["tombstones"] == 10
    fast.close()
    assert table.stats()["tombstones"] == 0
    with pytest.raises(FailedPreconditionError, match="reader 'fast' was closed"):
        fast.changes(state=True)


def test_a_reader_that_is_opened_again_resumes_where_it_was() -> None:
    table = sgd_table()
    table.assign(np.arange(30), np.ones((30, 1), np.float32), time=1)
    table.store.open_reader("log")
    table.erase(np.arange(5))
    again = table.store.open_reader("log")
    assert removed_ids(again) == list(range(5))
    again.advance(again.next_mark())
    assert removed_ids(table.store.open_reader("log")) == []
    with pytest.raises(FailedPreconditionError, match="cannot go back"):
        again.advance(ChangePosition(again.mark.generation, again.mark.life, again.mark.epoch - 1))


def test_marks_of_another_run_and_of_the_future_are_rejected() -> None:
    table, other = sgd_table(), sgd_table()
    mark = table.mark()
    table.assign([7], [[1.0]], time=1)
    with pytest.raises(FailedPreconditionError, match="another run"):
        other.changes(mark)
    with pytest.raises(FailedPreconditionError, match=r"has not happened yet, the last one is"):
        table.changes(ChangePosition(mark.generation, mark.life, 10**6))
    marks = [mark]
    for _ in range(2):  # two restores of one checkpoint give two lives of it
        table.store.resume(applied=[OwnerClock(ALL_BUCKETS, {0: BatchStamp(worker=0, seq=1)})], generation=3)
        marks.append(table.mark())
        for old in marks[:-1]:
            with pytest.raises(FailedPreconditionError, match="another run"):
                table.changes(old)
    assert [each.generation for each in marks] == [0, 4, 5]


def test_a_number_is_no_mark() -> None:
    with pytest.raises(TypeError, match=r"expected a Mark, .* got 0; leave it out to ask for all"):
        sgd_table().changes(0)  # type: ignore[arg-type]


def test_touched_rows_count_as_changed_and_absent_ones_as_removed() -> None:
    table = sgd_table()
    table.assign([1, 2], [[1.0], [2.0]], time=5)
    before = table.lookup_rows(np.array([1, 2]))
    mark = table.mark()
    table.touch([2, 99])
    assert changed_ids(table, mark) == [2]
    assert table.tombstones(mark).tolist() == [99]
    after = table.lookup_rows(np.array([1, 2]))
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_a_cut_gives_what_changed_since_a_mark_as_of_the_cut() -> None:
    table = sgd_table()
    table.assign(np.arange(10), np.ones((10, 1), np.float32), time=1)
    mark = table.mark()
    table.apply_gradients([2, 3], [[1.0], [1.0]], time=2)
    table.erase([4])
    with table.cut() as cut:
        table.apply_gradients([3, 5], [[1.0], [1.0]], time=3)
        table.erase([6, 2])
        blocks = list(cut.blocks(since=mark))
    rows = {
        k: w
        for b in blocks
        if b.kind is BlockKind.FULL
        for k, w in zip(b.keys.tolist(), b.weights(1)[:, 0], strict=True)
    }
    assert rows == {2: 0.0, 3: 0.0}
    assert [k for b in blocks if b.kind is BlockKind.TOMBSTONE for k in b.keys.tolist()] == [4]


def test_a_second_cut_waits_for_the_release_of_the_first() -> None:
    table = sgd_table()
    cut = table.cut()
    with pytest.raises(FailedPreconditionError):
        table.cut()
    cut.release()
    cut.release()
    table.cut().release()


def test_a_dropped_cut_releases_itself() -> None:
    table = sgd_table()
    cut = table.cut()
    del cut
    table.cut().release()


def test_a_table_of_a_group_leaves_history_to_the_group() -> None:
    group = TableGroup({"a": TableConfig([Segment(1)]), "b": TableConfig([Segment(1)])})
    for call in (group["a"].cut, group["a"].changes, lambda: group["a"].forget(group.mark())):
        with pytest.raises(FailedPreconditionError, match=r"applies to the entire group \(a, b\), not to one table"):
            call()
    group["a"].assign([1], [[1.0]])
    group["b"].assign([2], [[1.0]])
    group["a"].clear()
    assert (len(group["a"]), len(group["b"])) == (0, 1)
    with group.cut() as cut:
        tables = {
            (block.table, k) for block in cut.blocks() if block.kind is BlockKind.FULL for k in block.keys.tolist()
        }
    assert tables == {(1, 2)}
