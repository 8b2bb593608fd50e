"""Tables in the children of a process that uses them: whole copies, which wait for no thread of the parent."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from monolith.tables import BatchStamp, HashTable, LocalStore, Segment, TableConfig, TouchedKeySet, Update
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

IDS = np.arange(20_000)
HANGING_S = 30
"""After this a child counts as hanging. None takes a second, however busy the machine is."""


def exit_code_of_child(work: Callable[[], None]) -> int:
    """Runs `work` in a forked child; 0 iff it ended by itself and without an exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads: our case
        child = os.fork()
    if child == 0:  # pragma: no cover - measured in another process
        status = 1
        signal.alarm(HANGING_S)
        try:
            work()
            status = 0
        except Exception:  # noqa: BLE001 - whatever it is, the exit code tells
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def busy(*calls: Callable[[], object]) -> Iterator[None]:
    """Each of the calls is repeated by a thread of its own meanwhile."""
    stop = threading.Event()

    def repeat(call: Callable[[], object]) -> None:
        while not stop.is_set():
            call()

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def counting_table() -> HashTable:
    """Weights say how many updates a row had."""
    config = TableConfig([Segment(4, optimizer=Sgd(learning_rate=1.0), initializer=Zeros())], expire_days=1)
    return HashTable(config)


def learn(table: HashTable) -> None:
    table.apply_gradients(IDS, np.full((len(IDS), 4), -1, np.float32), time=1)


def use_everything(table: HashTable) -> None:
    """Calls of every kind: those that share the table, those that must be alone, those of the pool."""
    before = table.lookup(torch.from_numpy(IDS))
    assert before.min() == before.max()  # an update is whole, or has not happened
    learn(table)
    assert torch.equal(table.lookup(torch.from_numpy(IDS)), before + 1)  # by a torch that does not wait for its threads
    assert sorted(table.ids().tolist()) == IDS.tolist()
    core = table.native.core
    core.join(0)
    core.mark()
    core.cut().release()
    assert table.evict(now=10 * 86400) == len(IDS)
    table.clear()
    learn(table)
    assert len(table) == len(IDS)


def test_a_child_uses_the_tables_that_its_parent_used() -> None:
    table = counting_table()
    learn(table)
    torch.ones(1_000_000).sum()  # torch has threads by now, too
    assert exit_code_of_child(lambda: use_everything(table)) == 0
    assert np.asarray(table.lookup(IDS)).tolist() == np.ones((len(IDS), 4)).tolist()  # the child's is a copy


def test_children_forked_during_updates_get_consistent_tables() -> None:
    table = counting_table()
    learn(table)
    with busy(lambda: learn(table), lambda: table.evict(now=5)):
        codes = [exit_code_of_child(lambda: use_everything(table)) for _ in range(4)]
    assert codes == [0] * len(codes)
    use_everything(table)


@pytest.mark.slow
def test_children_forked_during_updates_of_a_worker_see_complete_updates() -> None:
    config = TableConfig([Segment(1, optimizer=Sgd(learning_rate=1.0), initializer=Zeros())])
    store = LocalStore({"table": config})
    session = store.join(0)
    ids, splits = torch.from_numpy(IDS), torch.tensor([0, len(IDS)])
    seqs = itertools.count()

    def push() -> None:
        seq = next(seqs)
        plan = store.plan(ids, splits, stamp=BatchStamp(worker=0, seq=seq))
        rule = Update(previous=seq - 1, step=seq, learning_rates=torch.tensor([1.0]), times=1)
        session.apply([(plan, -torch.ones(len(IDS)))], rule).result()

    def look() -> None:
        rows = store.read(store.plan(ids, splits, stamp=BatchStamp(worker=0, seq=0)), step=0).result().values
        assert rows.min() == rows.max()
        store.join(1)
        store.cut().release()

    push()
    with busy(push):
        codes = [exit_code_of_child(look) for _ in range(8)]
    assert codes == [0] * len(codes)


@pytest.mark.slow
def test_children_forked_during_inserts_into_a_set_of_touched_keys_can_use_it() -> None:
    keys = TouchedKeySet(capacity=10**6, concurrency_level=4)

    def work() -> None:
        keys.insert(IDS)
        assert len(keys.steal()) == len(IDS)

    with busy(lambda: keys.insert(IDS)):
        codes = [exit_code_of_child(work) for _ in range(6)]
    assert codes == [0] * len(codes)


TABLE_OF_WORKERS = counting_table()
"""Workers find it in their copy of the parent's memory."""


def sum_in_worker() -> float:
    return float(TABLE_OF_WORKERS.lookup(torch.from_numpy(IDS)).sum())


class SumsByWorkers(torch.utils.data.Dataset[float]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, item: int) -> float:
        return sum_in_worker()


def test_workers_of_a_loader_and_processes_look_up_in_the_tables_of_their_parent() -> None:
    TABLE_OF_WORKERS.clear()
    learn(TABLE_OF_WORKERS)
    loader = torch.utils.data.DataLoader(
        SumsByWorkers(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=HANGING_S
    )
    process = multiprocessing.get_context("fork").Process(target=sum_in_worker)
    with busy(lambda: learn(counting_table())):
        assert list(loader) == [4.0 * len(IDS)] * 4
        process.start()
        process.join(HANGING_S)
        if process.exitcode is None:
            process.kill()
            process.join()
    assert process.exitcode == 0
