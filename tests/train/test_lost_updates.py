"""What servers have lost of a worker is counted once, by rows, however often they come back from the same moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from monolith.errors import UnavailableError
from monolith.job.state import JobState, LostUpdates
from monolith.tables.batch import BatchStamp
from monolith.train.saving.resuming import OwnerProgress, resume
from monolith.train.strategies.servers import ParameterServers

if TYPE_CHECKING:
    from monolith.job.job import JobClient


def stamp(seq: int) -> BatchStamp:
    return BatchStamp(worker=0, seq=seq, position=b"at %d" % seq)


def test_dense_weights_may_have_lost_more_than_rows() -> None:
    known = [
        OwnerProgress(0, stamp(9)),
        OwnerProgress(1, stamp(7)),
        OwnerProgress(0, stamp(9), is_dense=True),
        OwnerProgress(1, stamp(5), is_dense=True),
    ]
    found = resume(known, stamp(9))
    assert (found.next_seq, found.lost, found.lost_dense) == (10, {1: 2}, {1: 4})


def test_batches_already_counted_as_lost_are_not_reported_again() -> None:
    lost = LostUpdates[int]()
    assert lost.add(1, range(5, 10)) == 5
    assert lost.add(2, range(5, 10)) == 5, "another server"
    assert lost.add(1, range(5, 12)) == 2, "it came back from the same moment"
    assert lost.add(1, range(20, 25)) == 5
    assert lost.add(1, range(3, 25)) == 10, "from an earlier moment: 3, 4 and what is between both losses"
    assert lost.add(1, range(3, 25)) == 0
    assert lost.counts() == {1: 22, 2: 5}
    assert lost.ranges() == [(1, range(3, 25)), (2, range(5, 10))]
    lost.clear()
    assert lost.add(1, range(5, 10)) == 5


class DeafClient:
    """A client whose coordinator does not answer the first report."""

    index = 0
    state = JobState()

    def __init__(self) -> None:
        self.reports: list[tuple[int, int, range]] = []
        self.fails = True

    def report_lost(self, worker: int, server: int, batches: range) -> None:
        if self.fails:
            self.fails = False
            raise UnavailableError("the home server is away")
        self.reports.append((worker, server, batches))


def test_a_loss_that_could_not_be_reported_is_reported_by_the_next_attempt(caplog: pytest.LogCaptureFixture) -> None:
    client, unused = DeafClient(), cast("Any", None)
    part = ParameterServers(unused, cast("JobClient", client), unused, servers_back=unused, clock=unused)
    part.count_step(9, stamp(9), in_flight=0)
    known = [OwnerProgress(0, stamp(9)), OwnerProgress(1, stamp(7))]
    with pytest.raises(UnavailableError):
        part.resume(0, None, known, next_batch=0)
    assert part.resume(0, None, known, next_batch=0).next_seq == 10
    assert client.reports == [(0, 1, range(8, 10))]
    assert caplog.text.count("server 1 recovered without 2 of its updates") == 1
