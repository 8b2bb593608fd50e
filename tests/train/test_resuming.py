"""Behind which batch a worker goes on: everything is applied once everywhere, or said to be lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monolith.tables.batch import BatchStamp
from monolith.train.saving.resuming import OwnerProgress, resume

LAST = 12


def stamp(seq: int, *, position: bytes | None = None) -> BatchStamp | None:
    at = b"%d" % seq if position is None else position
    return None if seq < 0 else BatchStamp(worker=0, seq=seq, position=at)


seqs = st.integers(-1, LAST)
owners = st.lists(st.tuples(st.integers(0, 3), seqs), min_size=1, max_size=8)


@given(owners)
def test_an_input_that_can_be_read_again_loses_nothing(given_owners: list[tuple[int, int]]) -> None:
    known = [OwnerProgress(server, stamp(seq)) for server, seq in given_owners]
    found = resume(known, None)
    assert found.next_seq == min(seq for _, seq in given_owners) + 1
    assert found.behind == stamp(found.next_seq - 1)
    assert found.lost == {}


@given(owners, st.integers(0, LAST))
def test_what_a_server_lacks_of_what_was_confirmed_is_lost_and_no_more(
    given_owners: list[tuple[int, int]], confirmed: int
) -> None:
    known = [OwnerProgress(server, stamp(seq)) for server, seq in given_owners]
    found = resume(known, stamp(confirmed))
    assert (found.behind, found.next_seq) == (stamp(confirmed), confirmed + 1)
    for server, lost in found.lost.items():
        assert lost == confirmed - min(seq for each, seq in given_owners if each == server) > 0
    whole = {server for server, _ in given_owners} - found.lost.keys()
    assert all(seq >= confirmed for server, seq in given_owners if server in whole)


@given(owners, st.none() | st.integers(0, LAST))
def test_an_input_without_positions_gives_no_number_twice(
    given_owners: list[tuple[int, int]], confirmed: int | None
) -> None:
    known = [OwnerProgress(server, stamp(seq, position=b"")) for server, seq in given_owners]
    found = resume(known, None if confirmed is None else stamp(confirmed, position=b""))
    newest = max([*(seq for _, seq in given_owners), -1 if confirmed is None else confirmed])
    assert found.next_seq == newest + 1


def test_a_worker_without_progress_on_any_server_starts_from_scratch() -> None:
    assert resume([OwnerProgress(0, None), OwnerProgress(1, None)], None) == (None, 0, {}, {})
    assert resume([], None) == (None, 0, {}, {})
