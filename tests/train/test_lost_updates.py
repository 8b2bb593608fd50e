"""What servers have lost of a worker is counted once, by rows, however often they come back from the same moment."""

from __future__ import annotations

from monolith.tables.batch import BatchStamp
from monolith.train._lost_updates import LostUpdates
from monolith.train._resuming import Known, resume


def stamp(seq: int) -> BatchStamp:
    return BatchStamp(worker=0, seq=seq, position=b"at %d" % seq)


def test_dense_weights_may_have_lost_more_than_rows() -> None:
    known = [
        Known(0, stamp(9)),
        Known(1, stamp(7)),
        Known(0, stamp(9), is_dense=True),
        Known(1, stamp(5), is_dense=True),
    ]
    found = resume(known, stamp(9))
    assert (found.next_seq, found.lost, found.lost_dense) == (10, {1: 2}, {1: 4})


def test_batches_that_were_lost_before_are_not_told_again() -> None:
    lost = LostUpdates()
    assert lost.add(1, range(5, 10)) == 5
    assert lost.add(2, range(5, 10)) == 5, "another server"
    assert lost.add(1, range(5, 12)) == 2, "it came back from the same moment"
    assert lost.add(1, range(20, 25)) == 5
    assert lost.add(1, range(3, 25)) == 10, "from an earlier moment: 3, 4 and what is between both losses"
    assert lost.add(1, range(3, 25)) == 0
    lost.clear()
    assert lost.add(1, range(5, 10)) == 5
