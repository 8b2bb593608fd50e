"""Python threads on one table: rows are whole, updates add up, saves hold whole batches, long calls overlap."""

from __future__ import annotations

import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from monolith.tables import HashTable, Segment, TableConfig, id_kernels
from monolith.tables.row_optimizers import Adagrad, Sgd
from monolith.tables.touched_key_set import TouchedKeySet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

DIM = 8


def sgd_table() -> HashTable:
    return HashTable(TableConfig([Segment(DIM, optimizer=Sgd(learning_rate=1.0))]))


def adagrad_table(expire_days: int = 36500) -> HashTable:
    segment = Segment(DIM, optimizer=Adagrad(learning_rate=0.5, initial_accumulator_value=0.1))
    return HashTable(TableConfig([segment], expire_days=expire_days))


def uniform(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The one value of each row, once they are all of one value."""
    torn = np.flatnonzero((values != values[..., :1]).any(axis=-1))
    assert torn.size == 0, f"{torn.size} torn rows, the first is {values.reshape(-1, DIM)[torn[0]]}"
    return np.ascontiguousarray(values[..., 0])


def run_beside(readers: list[Callable[[], None]], writers: list[Callable[[], None]]) -> None:
    """Runs every writer once, and the readers again and again until the writers are done."""
    done = threading.Event()

    def repeat(reader: Callable[[], None]) -> None:
        while not done.is_set():
            reader()

    with ThreadPoolExecutor(len(readers) + len(writers)) as pool:
        reading = [pool.submit(repeat, reader) for reader in readers]
        writing = [pool.submit(writer) for writer in writers]
        try:
            for future in writing:
                future.result(timeout=50)
        finally:
            done.set()
        for future in reading:
            future.result(timeout=50)


def test_readers_never_see_a_torn_row_or_the_row_of_another_id() -> None:
    table, num_ids, writes = sgd_table(), 500, 1000
    everything = np.arange(num_ids)

    def writer(seed: int) -> Callable[[], None]:
        def write() -> None:
            random = np.random.default_rng(seed)
            for _ in range(150):
                ids = random.integers(0, num_ids, 100)
                if random.random() < 0.2:
                    table.erase(np.unique(ids))
                    continue
                stamps = (1 + ids * writes + random.integers(0, writes, 100)).astype(np.float32)  # exact below 2^24
                table.assign(ids, np.repeat(stamps[:, None], DIM, axis=1))

        return write

    def read_rows() -> None:
        stamps = uniform(table.lookup(everything))
        present = np.flatnonzero(stamps)
        np.testing.assert_array_equal((stamps[present].astype(np.int64) - 1) // writes, present)

    def read_pooled() -> None:
        uniform(table.lookup_pooled(everything, np.arange(0, num_ids + 1, 5), "sum"))
        uniform(table.lookup_pooled(everything, np.arange(0, num_ids + 1, 5), ("first_n", 2)))

    run_beside([read_rows, read_pooled], [writer(1), writer(2)])
    assert sorted(table.ids().tolist()) == np.flatnonzero(uniform(table.lookup(everything))).tolist()


def test_gradients_of_many_threads_add_up() -> None:
    table, num_ids = sgd_table(), 2000
    counts = np.zeros((3, num_ids), np.int64)

    def writer(number: int) -> Callable[[], None]:
        def write() -> None:
            random = np.random.default_rng(number)
            for step in range(40):
                ids = random.integers(0, num_ids, 6000 if step % 4 == 0 else 300)
                np.add.at(counts[number], ids, 1)
                table.apply_gradients(ids, np.ones((len(ids), DIM), np.float32), step=step, time=step)

        return write

    def read() -> None:
        uniform(table.lookup(np.arange(num_ids)))

    run_beside([read], [writer(each) for each in range(3)])
    np.testing.assert_array_equal(uniform(table.lookup(np.arange(num_ids))), -counts.sum(axis=0).astype(np.float32))
    assert len(table) == np.count_nonzero(counts.sum(axis=0))


def test_a_save_concurrent_with_writers_holds_every_batch_completely_or_not_at_all(tmp_path: Path) -> None:
    table, per_writer, done = sgd_table(), 400, threading.Event()

    def write(number: int) -> None:
        ids = np.arange(number * per_writer, (number + 1) * per_writer) * 7919  # far apart: in all buckets
        stamp = 0
        while not done.is_set():
            stamp += 1
            table.assign(ids, np.full((per_writer, DIM), stamp, np.float32), time=stamp)

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write, number) for number in range(2)]
        try:
            for round_number in range(3):
                table.save(tmp_path / str(round_number))
        finally:
            done.set()
        for future in writing:
            future.result(timeout=50)
    for round_number in range(3):
        restored = sgd_table()
        restored.restore(tmp_path / str(round_number))
        for number in range(2):
            ids = np.arange(number * per_writer, (number + 1) * per_writer) * 7919
            rows = restored.lookup_rows(ids)
            assert len(set(uniform(rows.weights).tolist())) == 1
            np.testing.assert_array_equal(rows.time, uniform(rows.weights).astype(np.int64))


def test_marks_evictions_and_changes_can_happen_concurrently() -> None:
    table, day = adagrad_table(expire_days=1), 86400

    def write() -> None:
        random = np.random.default_rng(3)
        for step in range(60):
            ids = random.integers(0, 3000, 200)
            table.apply_gradients(ids, np.full((200, DIM), 0.5, np.float32), step=step, time=day * (1 + step // 10))

    def change() -> None:
        table.evict()
        since = table.mark()
        assert sum(block.count for block in table.changes(since)) >= 0
        ids = table.ids().tolist()
        assert len(set(ids)) == len(ids)

    def read() -> None:
        uniform(table.lookup(np.arange(3000)))

    run_beside([change, read], [write, write])
    ids = table.ids()
    assert len(ids) == len(table) == len(set(ids.tolist()))
    assert bool(table.contains(ids).all())


BIG = 1_500_000
BIG_IDS = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, BIG)
QUARTER = BIG_IDS[: BIG // 4]
ROWS = np.ones((BIG // 4, DIM), np.float32)
LONG_CALLS: dict[str, Callable[[HashTable, TouchedKeySet], object]] = {
    "lookup": lambda table, _: table.lookup(BIG_IDS),
    "lookup_pooled": lambda table, _: table.lookup_pooled(BIG_IDS, np.arange(0, BIG + 1, 10), "mean"),
    "lookup_rows": lambda table, _: table.lookup_rows(BIG_IDS),
    "contains": lambda table, _: table.contains(BIG_IDS),
    "plan": lambda table, _: table.plan(BIG_IDS),
    "assign": lambda table, _: table.assign(QUARTER, ROWS),
    "apply_gradients": lambda table, _: table.apply_gradients(QUARTER, ROWS),
    "ids": lambda table, _: table.ids(),
    "TouchedKeySet.insert": lambda _, keys: keys.insert(BIG_IDS),
    "unique": lambda *_: id_kernels.unique(BIG_IDS),
    "partition": lambda *_: id_kernels.partition(BIG_IDS, 8),
}
"""Calls that take ten milliseconds or more."""


def python_runs_during(call: Callable[[], object]) -> bool:
    """True iff this thread ran Python code in the middle of the call of another thread."""
    ticks: list[float] = []
    with ThreadPoolExecutor(1) as pool:

        def timed() -> tuple[float, float]:
            begin = time.perf_counter()
            call()
            return begin, time.perf_counter()

        future = pool.submit(timed)
        while not future.done():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)
        begin, end = future.result()
    quarter = (end - begin) / 4
    return any(begin + quarter < tick < end - quarter for tick in ticks)


@pytest.mark.parametrize("name", list(LONG_CALLS))
def test_a_long_call_lets_other_python_threads_run(name: str) -> None:
    table, keys = adagrad_table(), TouchedKeySet()
    table.assign(QUARTER, ROWS)
    call = functools.partial(LONG_CALLS[name], table, keys)
    assert any(python_runs_during(call) for _ in range(10)), f"{name} kept the interpreter for itself"


def test_the_check_for_overlap_sees_a_call_that_keeps_the_interpreter() -> None:
    numbers = list(range(3_000_000))
    assert not any(python_runs_during(functools.partial(sum, numbers)) for _ in range(3))
