"""Cuts, marks and named readers: what a store tells of its past, and what it forgets."""

from __future__ import annotations

import pytest
import torch

from contracts.engines import StoreFactory
from contracts.one_worker import DAY, ONE_TABLE, Worker, blocks_of, follow, keys, rows_of, stamp
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import Segment, TableConfig
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS, ChangePosition
from monolith.tables.row_optimizers import Adagrad
from monolith.tables.store import Store


def num_tombstones(store: Store) -> float:
    return store.stats().tables["user"]["tombstones"]


def mark_now(store: Store) -> ChangePosition:
    with store.cut() as cut:
        return cut.mark


# Cuts


def test_a_cut_is_a_consistent_state_of_rows_and_stamps(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    ours, others = Worker(store, 0), Worker(store, 4)
    ours.train([1])
    others.train([1])
    with ours.session.cut() as cut:
        ours.train([1, 2])
        others.train([3])
        (block,) = cut.blocks(ALL_BUCKETS, state=True)
        assert block.keys.tolist() == [1]
        assert block.weights(2).tolist() == [[-2.0, -2.0]]
        assert cut.rows == {"user": 1}
        assert {clock.buckets: dict(clock.stamps) for clock in cut.applied} == {
            clock.buckets: {0: stamp(0), 4: stamp(0, 4)} for clock in cut.applied
        }
        assert [bucket for clock in cut.applied for bucket in clock.buckets] == list(ALL_BUCKETS)
    cut.release()


def test_only_one_cut_is_open_at_a_time(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    cut = store.cut()
    with pytest.raises(FailedPreconditionError):
        store.cut()
    cut.release()
    store.cut().release()


def test_a_bucket_of_a_cut_is_read_once_and_none_after_its_release(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    Worker(store).train(list(range(50)))
    with store.cut() as cut:
        first = keys(cut.blocks(range(512), state=True))[0]
        with pytest.raises(FailedPreconditionError):
            cut.blocks(range(500, 600), state=True)
        rest = keys(cut.blocks(range(512, 1024), state=True))[0]
    assert sorted(first + rest) == list(range(50))
    with pytest.raises(FailedPreconditionError, match="released"):
        cut.blocks(ALL_BUCKETS, state=True)


def test_buckets_that_are_none_are_refused(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    reader = store.open_reader("log")
    with store.cut() as cut, pytest.raises(InvalidArgumentError, match="buckets must be"):
        cut.blocks(range(1000, 1025), state=True)
    with pytest.raises(InvalidArgumentError, match="buckets must be"):
        reader.changes(state=True, buckets=range(-1, 3))


def test_a_cut_since_a_mark_has_what_changed_between_the_two(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    reader = store.open_reader("log")
    worker.train([1, 2, 3], time=0)
    reader.advance(reader.next_mark())
    worker.train([2, 4], time=2 * DAY)
    worker.session.evict(now=2 * DAY)
    with store.cut() as cut:
        worker.train([1, 4, 5], time=9 * DAY)
        worker.session.evict(now=9 * DAY)
        assert keys(cut.blocks(ALL_BUCKETS, state=True, since=reader.mark)) == ([2, 4], [1, 3])


def test_a_cut_since_a_discarded_or_later_mark_is_rejected(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    early = mark_now(store)
    worker.train([1])
    with store.cut() as cut:
        with pytest.raises(FailedPreconditionError, match="discarded"):
            cut.blocks(ALL_BUCKETS, state=True, since=early)
        reader = store.open_reader("log")
        late = reader.next_mark()
        with pytest.raises(FailedPreconditionError, match="after this cut"):
            cut.blocks(ALL_BUCKETS, state=True, since=late)
        assert keys(cut.blocks(ALL_BUCKETS, state=True, since=cut.mark)) == ([], [])


def test_a_cut_since_a_mark_leaves_admission_counts_out(new_store: StoreFactory) -> None:
    counting = TableConfig([Segment(2)], min_count=5, admission=SlidingHashFilter(capacity=1000))
    store = new_store({"user": counting})
    reader = store.open_reader("log")
    Worker(store).train([1, 2])
    with store.cut() as cut:
        assert list(cut.blocks(ALL_BUCKETS, state=True, since=reader.mark)) == []
    assert {block.kind for block in blocks_of(store)} == {BlockKind.FILTER}


# Readers


def test_changes_are_what_was_written_after_the_mark(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1, 2])
    reader = store.open_reader("log")
    assert follow(reader) == ([], [])
    worker.train([2, 3], time=5 * DAY)
    assert follow(reader) == ([2, 3], [])
    assert worker.session.evict(now=5 * DAY) == 1
    assert follow(reader) == ([], [1])
    assert follow(reader) == ([], [])


def test_what_was_not_advanced_over_is_read_again(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    reader = store.open_reader("log")
    before = reader.mark
    worker.train([1])
    reader.next_mark()
    assert keys(reader.changes(state=True)) == ([1], [])
    assert keys(store.open_reader("log").changes(state=True)) == ([1], [])
    assert reader.mark == before


def test_changes_of_some_buckets(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    reader = store.open_reader("log")
    Worker(store).train(list(range(60)))
    parts = [keys(reader.changes(state=True, buckets=range(begin, begin + 256)))[0] for begin in range(0, 1024, 256)]
    assert sorted(key for part in parts for key in part) == list(range(60))
    assert all(parts)


def test_serving_blocks_carry_weights_without_state(new_store: StoreFactory) -> None:
    store = new_store({"user": TableConfig([Segment(2, optimizer=Adagrad())])})
    reader = store.open_reader("serving")
    Worker(store).train([1])
    (block,) = reader.changes(state=False)
    assert (block.kind, block.row_bytes) == (BlockKind.SERVING, 8)


def test_touched_rows_count_as_changed_and_absent_ids_as_removed(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1, 2], time=7)
    reader = store.open_reader("log")
    store.touch("user", torch.tensor([2, 9, 2, 9]))
    assert follow(reader) == ([2], [9])
    assert rows_of(store, [1, 2, 9]) == [[-1.0, -1.0], [-1.0, -1.0], [0.0, 0.0]]
    assert {int(time) for block in blocks_of(store) for time in block.times} == {7}
    with pytest.raises(InvalidArgumentError, match="unknown table 'nobody'"):
        store.touch("nobody", torch.tensor([1]))


def test_readers_do_not_disturb_each_other(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    fast, slow = store.open_reader("fast"), store.open_reader("slow")
    for number in range(4):
        worker.train([number], time=number * DAY)
        worker.session.evict(now=number * DAY)
        assert follow(fast) == ([number], [number - 1] if number else [])
    assert follow(slow) == ([3], [0, 1, 2])


def test_a_reopened_reader_resumes_at_its_position(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    first = store.open_reader("log")
    worker.train([1])
    again = store.open_reader("log")
    assert (again.name, again.mark) == ("log", first.mark)
    assert follow(again) == ([1], [])
    assert first.mark == again.mark


def test_a_reader_opened_at_the_mark_of_a_cut_follows_what_came_after_it(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1, 2])
    with store.cut() as cut:
        worker.train([3], time=5 * DAY)
        worker.session.evict(now=5 * DAY)
        reader = store.open_reader("log", at=cut.mark)
        assert keys(cut.blocks(ALL_BUCKETS, state=True)) == ([1, 2], [])
    assert follow(reader) == ([3], [1, 2])


def test_other_readers_keep_everything_that_came_after_an_open_cut(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    fast = store.open_reader("fast")
    worker.train([1, 2])
    with store.cut() as cut:
        worker.session.evict(now=5 * DAY)
        assert follow(fast) == ([], [1, 2])
        worker.train([3])
        assert follow(fast) == ([3], [])
        late = store.open_reader("late", at=cut.mark)
    assert follow(late) == ([3], [1, 2])


def test_a_reader_can_always_start_from_the_beginning(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1, 2], time=0)
    worker.train([2], time=5 * DAY)
    worker.session.evict(now=5 * DAY)
    reader = store.open_reader("copy", at=mark_now(store)._replace(epoch=0))
    assert follow(reader)[0] == [2]
    worker.train([3])
    assert follow(reader) == ([3], [])


def test_a_reader_cannot_go_back_nor_ahead(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    reader = store.open_reader("log")
    earlier, reached = reader.mark, reader.next_mark()
    reader.advance(reached)
    for wrong in (earlier, reached._replace(epoch=reached.epoch + 7), reached._replace(life=reached.life ^ 1)):
        with pytest.raises(FailedPreconditionError):
            reader.advance(wrong)
    assert reader.mark == reached


def test_a_reader_needs_a_name(new_store: StoreFactory) -> None:
    with pytest.raises(InvalidArgumentError, match="name"):
        new_store(ONE_TABLE).open_reader("")


# Forgetting


def test_without_readers_nothing_is_kept(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    early = mark_now(store)
    worker.train(list(range(20)))
    worker.session.evict(now=5 * DAY)
    assert num_tombstones(store) == 0
    with pytest.raises(FailedPreconditionError, match="discarded"):
        store.open_reader("late", at=early)


def test_the_store_truncates_up_to_its_slowest_reader(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    fast, slow = store.open_reader("fast"), store.open_reader("slow")
    for number in range(3):
        worker.train([number], time=number * DAY)
    worker.session.evict(now=9 * DAY)
    assert num_tombstones(store) == 3
    follow(fast)
    assert num_tombstones(store) == 3
    early = slow.mark
    follow(slow)
    assert num_tombstones(store) == 0
    with pytest.raises(FailedPreconditionError, match="discarded"):
        store.open_reader("late", at=early)


def test_a_reader_that_is_closed_keeps_nothing(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    fast, slow = store.open_reader("fast"), store.open_reader("slow")
    worker.train([1, 2])
    worker.session.evict(now=9 * DAY)
    follow(fast)
    slow.close()
    slow.close()
    assert num_tombstones(store) == 0
    with pytest.raises(FailedPreconditionError, match="closed"):
        slow.changes(state=True)
    fast.close()
    worker.train([3])
    worker.session.evict(now=9 * DAY)
    assert num_tombstones(store) == 0
    assert follow(store.open_reader("slow")) == ([], [])  # from now on


def test_tombstones_kept_for_a_cut_are_discarded_when_it_is_released(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1, 2])
    with store.cut() as cut:
        worker.session.evict(now=9 * DAY)
        assert num_tombstones(store) == 2
    assert num_tombstones(store) == 0
    with pytest.raises(FailedPreconditionError, match="discarded"):
        store.open_reader("late", at=cut.mark)


def test_emptied_buckets_break_the_history(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    worker = Worker(store)
    worker.train([1, 2])
    reader = store.open_reader("log")
    store.load([], buckets=ALL_BUCKETS, replace=True)
    with pytest.raises(FailedPreconditionError, match="discarded"):
        list(reader.changes(state=True))
    reader.advance(reader.next_mark())
    worker.train([3])
    assert follow(reader) == ([3], [])


# Lives


def test_marks_of_another_run_are_rejected(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    reader = store.open_reader("log")
    old = reader.mark
    assert old.generation == 0
    store.resume(applied=(), generation=0)
    for mark in (old, reader_mark_of_twin(new_store)):
        with pytest.raises(FailedPreconditionError, match="another run"):
            store.open_reader("log", at=mark)
        with store.cut() as cut, pytest.raises(FailedPreconditionError, match="another run"):
            cut.blocks(ALL_BUCKETS, state=True, since=mark)
    with pytest.raises(FailedPreconditionError, match="another run"):
        reader.changes(state=True)
    with pytest.raises(FailedPreconditionError, match="another run"):
        reader.next_mark()
    reader.close()  # nothing of the new life
    assert mark_now(store).generation == 1


def reader_mark_of_twin(new_store: StoreFactory) -> ChangePosition:
    """Of a run that goes on from the same state, and so is of the same generation."""
    twin = new_store(ONE_TABLE)
    twin.resume(applied=(), generation=0)
    mark = mark_now(twin)
    assert mark.generation == 1
    return mark


def test_an_old_reader_does_not_close_a_new_one_of_its_name(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    old = store.open_reader("log")
    store.resume(applied=(), generation=3)
    new = store.open_reader("log")
    assert new.mark.generation == 4
    old.close()
    Worker(store).train([1])
    assert follow(new) == ([1], [])


@pytest.mark.parametrize("ahead", [1, 1_000_000])
def test_marks_of_the_future_are_refused(new_store: StoreFactory, ahead: int) -> None:
    store = new_store(ONE_TABLE)
    reader = store.open_reader("log")
    future = reader.mark._replace(epoch=reader.mark.epoch + ahead)
    with pytest.raises(FailedPreconditionError, match="has not happened yet"):
        store.open_reader("other", at=future)
    with pytest.raises(FailedPreconditionError, match="has not happened yet"):
        reader.advance(future)


def test_generations_grow_with_every_resume(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    found = []
    for generation in (0, 0, 7, 2):
        store.resume(applied=(), generation=generation)
        found.append(mark_now(store).generation)
    assert found == [1, 2, 8, 9]


def test_closing_a_store_ends_its_readers(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    reader = store.open_reader("log")
    store.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        reader.changes(state=True)
