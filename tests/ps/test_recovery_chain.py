"""Which states bring rows back, and which are needed no more."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from monolith.ps.recovery.chain import RowsPlan, first_needed, plan_rows
from monolith.ps.recovery.entries import RecordedState, RowsEntry, Section

STORE = "rows"


def entry(
    end: int, begin: int | None = None, *, lineage: int = 1, snapshots: dict[int, int] | None = None
) -> RowsEntry:
    return RowsEntry(
        agreement="",
        lineage=lineage,
        generation=0,
        life=0,
        end=end,
        stamps={},
        newest_times=(),
        snapshots=snapshots or {},
        section=None if begin is None else Section(begin=begin, records=(), rows=0),
    )


def states(entries: Sequence[RowsEntry]) -> dict[int, RecordedState]:
    """States 1, 2 and so on."""
    return {number: RecordedState(stores={STORE: each}) for number, each in enumerate(entries, 1)}


def plan(entries: Sequence[RowsEntry], snapshots: Sequence[int] = ()) -> RowsPlan | None:
    return plan_rows(states(entries), STORE, entries[-1], snapshots)


def test_rows_come_from_nothing_where_a_file_has_all_of_them() -> None:
    found = plan([entry(3, 0), entry(5, 3), entry(9, 5)])
    assert found is not None
    assert (found.snapshot_id, found.states, found.end, found.cut_at) == (None, (1, 2, 3), 9, None)


def test_files_before_one_with_all_rows_are_skipped() -> None:
    found = plan([entry(3, 0), entry(5, 3), entry(7, 0), entry(9, 7)])
    assert found is not None
    assert found.states == (3, 4)


def test_a_snapshot_between_two_files_takes_the_second_and_what_follows() -> None:
    found = plan([entry(3, 0), entry(5, 3), entry(9, 5), entry(9, snapshots={77: 6})], [77])
    assert found is not None
    assert (found.snapshot_id, found.states, found.end) == (77, (3,), 9)
    assert found.entry is not None
    assert found.entry.end == 9


def test_a_snapshot_that_is_newer_than_the_record_is_all() -> None:
    found = plan([entry(3, 0), entry(3, snapshots={77: 6})], [77])
    assert found is not None
    assert (found.snapshot_id, found.states, found.end, found.entry) == (77, (), 6, None)


def test_a_snapshot_before_the_last_file_with_all_rows_is_not_needed() -> None:
    found = plan([entry(3, 0), entry(9, 0, snapshots={77: 4})], [77])
    assert found is not None
    assert (found.snapshot_id, found.states) == (None, (2,))


def test_rows_whose_base_is_missing_are_not_recovered() -> None:
    assert plan([entry(5, 3, snapshots={77: 3}), entry(9, 5, snapshots={77: 3})], [78]) is None


def test_a_missing_file_cuts_off_what_follows() -> None:
    found = plan([entry(3, 0), entry(5, 3), entry(9, 7), entry(11, 9)])
    assert found is not None
    assert (found.states, found.end, found.cut_at) == ((1, 2), 5, 3)


def test_files_of_rows_that_were_replaced_do_not_count() -> None:
    assert plan([entry(3, 0, lineage=2), entry(5, 3)]) is None
    found = plan([entry(3, 0, lineage=2), entry(8, snapshots={77: 8}), entry(9, 8, snapshots={77: 8})], [77])
    assert found is not None
    assert (found.snapshot_id, found.states) == (77, (3,))


def test_what_a_checkpoint_has_is_not_kept() -> None:
    files = states([entry(3, 0), entry(5, 3), entry(9, 5), entry(11, 9, snapshots={77: 5})])
    assert first_needed(files, [77]) == 3
    assert first_needed(files, []) == 1
    assert first_needed(files, [78]) == 1


def test_notes_and_states_before_one_with_all_rows_are_not_kept() -> None:
    assert first_needed(states([entry(3, 0), entry(3), entry(5, 3), entry(9, 0), entry(11, 9)]), []) == 4


def test_whatever_is_kept_brings_back_what_all_files_would() -> None:
    rng = random.Random(301)  # noqa: S311 - a fixed seed
    for _ in range(1000):
        entries, snapshots, end = [], {}, 0
        for number in range(rng.randint(1, 8)):
            begin, end = end, end + rng.randint(1, 3)
            if rng.random() < 0.4:
                snapshots[100 + number] = rng.randint(begin, end)
            whole = number == 0 or rng.random() < 0.15
            entries.append(entry(end, 0 if whole else begin, snapshots=dict(snapshots)))
            if rng.random() < 0.3:
                entries.append(entry(end, snapshots=dict(snapshots)))
        files = states(entries)
        newest = [max(snapshots)] if snapshots else []
        first = first_needed(files, newest)
        kept = {number: state for number, state in files.items() if number >= first}
        before = plan_rows(files, STORE, entries[-1], newest)
        after = plan_rows(kept, STORE, entries[-1], newest)
        assert before is not None
        assert after == before
        reached = 0 if before.snapshot_id is None else snapshots[before.snapshot_id]
        by_number = {number: state.stores[STORE] for number, state in files.items()}
        for number in before.states:
            section = by_number[number].section
            assert section is not None
            assert section.begin == 0 or section.begin <= reached
            reached = by_number[number].end
        assert reached == max(end, *itertools.chain([0], snapshots.values() if before.snapshot_id else ()))
