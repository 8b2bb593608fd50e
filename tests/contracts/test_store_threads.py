"""Workers of several threads at one store, with cuts, readers and restarts beside them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from contracts.engines import StoreFactory
from contracts.one_worker import ONE_TABLE, Worker, follow, rows_of
from monolith.errors import FailedPreconditionError
from monolith.tables.history import ALL_BUCKETS, Cut
from monolith.tables.store import Store

NUM_WORKERS = 4
NUM_BATCHES = 25
NUM_IDS = 60
OF_ALL = 1000
"""The first id that every worker trains."""


def ids_of(worker: int, batch: int) -> list[int]:
    """The worker's own id of this batch, and ids that all workers train in every batch."""
    return [worker * 100 + batch, *range(OF_ALL, OF_ALL + NUM_IDS)]


def train_all(store: Store, number: int, started: threading.Barrier) -> None:
    worker = Worker(store, number)
    started.wait(30)
    for batch in range(NUM_BATCHES):
        worker.train(ids_of(number, batch))


def check(cut: Cut) -> None:
    """It holds exactly the batches that its clocks name, of every worker, in every owner's buckets."""
    rows = {
        key: weights[0]
        for block in cut.blocks(ALL_BUCKETS, state=True)
        for key, weights in zip(block.keys.tolist(), block.weights(2).tolist(), strict=True)
    }
    clock = cut.applied[0].stamps
    assert all(dict(owner.stamps) == dict(clock) for owner in cut.applied), "owners in one process move together"
    done = {number: clock[number].seq + 1 for number in clock}
    own = {ids_of(number, batch)[0]: -1.0 for number, count in done.items() for batch in range(count)}
    assert {key: weight for key, weight in rows.items() if key < OF_ALL} == own
    shared = {key: weight for key, weight in rows.items() if key >= OF_ALL}
    assert shared == dict.fromkeys(range(OF_ALL, OF_ALL + NUM_IDS), -float(sum(done.values()))) if done else not shared


def test_every_cut_holds_exactly_the_batches_that_its_clocks_name(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    started = threading.Barrier(NUM_WORKERS)
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        workers = [pool.submit(train_all, store, number, started) for number in range(NUM_WORKERS)]
        while not all(each.done() for each in workers):
            with store.cut() as cut:
                check(cut)
        for each in workers:
            each.result()
    assert store.stats().applied == dict.fromkeys(range(NUM_WORKERS), NUM_BATCHES - 1)
    assert rows_of(store, [OF_ALL]) == [[-float(NUM_WORKERS * NUM_BATCHES)] * 2]
    with store.cut() as cut:
        check(cut)


def test_a_reader_misses_no_rows_written_concurrently(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    reader = store.open_reader("log")
    started = threading.Barrier(NUM_WORKERS)
    found: set[int] = set()
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        workers = [pool.submit(train_all, store, number, started) for number in range(NUM_WORKERS)]
        while not all(each.done() for each in workers):
            found |= set(follow(reader)[0])
    found |= set(follow(reader)[0])
    assert found == {
        key for number in range(NUM_WORKERS) for batch in range(NUM_BATCHES) for key in ids_of(number, batch)
    }


def test_of_two_sessions_of_one_worker_only_the_later_one_trains(new_store: StoreFactory) -> None:
    store = new_store(ONE_TABLE)
    former = Worker(store)
    pushed = threading.Event()

    def train_for_ever() -> None:
        while True:
            former.train([1])
            pushed.set()

    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(train_for_ever)
        assert pushed.wait(30)
        later = Worker(store)
        with pytest.raises(FailedPreconditionError, match="join again"):
            refused.result()
    assert later.last == former.last, "what the former one was told is applied is what the later one finds"
    later.train([1])
    assert rows_of(store, [1]) == [[-float(former.last + 2)] * 2]
