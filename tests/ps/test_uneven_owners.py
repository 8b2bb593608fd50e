"""A worker goes on behind any batch, whatever of its batches each owner of rows has: who lacks some is not asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

import numpy as np
import pytest

from contracts.one_worker import ONE_TABLE, Worker, rows_of, stamp
from monolith import _core
from monolith.errors import FailedPreconditionError
from monolith.ps import PsCluster
from monolith.tables import LocalStore
from monolith.tables.history import OwnerClock
from monolith.tables.store import Store
from ps.served import Served

HALVES = (range(512), range(512, 1024))
BUCKETS = _core.bucket_of(np.arange(100)).tolist()
FIRST, SECOND = (next(number for number, bucket in enumerate(BUCKETS) if bucket in half) for half in HALVES)


@pytest.fixture
def store(clusters: Mapping[int, PsCluster]) -> Iterator[Store]:
    """Two owners: the first has batch 2 of worker 0 as its last one, the second batch 5."""
    with closing(Served(clusters[2])) as served:
        made = served(ONE_TABLE)
        clocks = [OwnerClock(half, {0: stamp(seq)}) for half, seq in zip(HALVES, (2, 5), strict=True)]
        made.resume(applied=clocks, generation=0)
        yield made


def test_a_joining_worker_receives_what_each_owner_has(store: Store) -> None:
    session = store.join(0)
    assert list(session.applied_by_server) == [stamp(2), stamp(5)]
    assert (session.applied, session.next_seq) == (stamp(2), 6)
    assert list(store.join(1).applied_by_server) == [None, None]


@pytest.mark.parametrize("behind", [2, 3, 4, 5, 7])
def test_each_owner_takes_what_it_has_not_from_there_on(store: Store, behind: int) -> None:
    worker = Worker(store)
    pushed = range(behind + 1, behind + 6)
    for seq in pushed:
        worker.push(worker.plan([FIRST, SECOND], seq))
    taken = [len(pushed), sum(seq > 5 for seq in pushed)]
    assert rows_of(store, [FIRST, SECOND]) == [[-float(count)] * 2 for count in taken]
    assert set(store.join(0).applied_by_server) == {stamp(pushed[-1])}


def test_one_that_goes_missing_later_is_still_noticed(store: Store) -> None:
    worker = Worker(store)
    worker.push(worker.plan([FIRST, SECOND], 8))
    with pytest.raises(FailedPreconditionError, match="9 as the push before it"):
        worker.push(worker.plan([FIRST, SECOND], 10), previous=9)


def test_a_store_of_one_owner_returns_what_that_owner_has() -> None:
    store = LocalStore(ONE_TABLE)
    worker = Worker(store)
    worker.train([1])
    assert list(worker.session.applied_by_server) == [None]
    assert list(store.join(0).applied_by_server) == [stamp(0)]
