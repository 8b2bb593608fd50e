"""Calls of every kind on one table from 16 threads, valid and invalid ones mixed: rows stay intact, and sums add up."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.tables import HashTable, Segment, TableConfig
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd
from system.attack.attempt import Attempt

NUM_THREADS = 16
_CALLS_PER_THREAD = 60
_NUM_IDS = 300
_DIM = 6
_WAIT_SECONDS = 50.0


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Yields rounds, each on a table of its own; an attempt is a round of calls by all threads."""
    for number in itertools.count():
        problem, calls = _Round(f"{seed} threads {number}").run()
        yield Attempt(f"round {number}", f"{calls} calls", problem)


class _Round:
    """Threads that add to shared ids, and change ids of their own; the final rows must match their calls."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        segment = Segment(_DIM, initializer=Zeros(), optimizer=Sgd(learning_rate=1.0))
        self._table = HashTable(TableConfig([segment], expire_days=36500))
        self._together = threading.Barrier(NUM_THREADS)
        self._torn: list[str] = []

    def run(self) -> tuple[str | None, int]:
        """Returns the problem, if any, and the number of calls."""
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            working = [pool.submit(self._work, thread) for thread in range(NUM_THREADS)]
            counted = [each.result(_WAIT_SECONDS) for each in working]
        added: Counter[int] = sum(counted, Counter())
        ids = np.arange(_NUM_IDS)
        rows = self._table.lookup(ids)
        expected = np.array([added[each] for each in ids.tolist()], np.float32)
        wrong = np.flatnonzero((rows != expected[:, None]).any(axis=1))
        problems = self._torn + [f"id {each}: {added[each]} added, {rows[each].tolist()} there" for each in wrong[:3]]
        own = [self._own_ids(thread) for thread in range(NUM_THREADS)]
        num_rows = len(+added) + sum(len(each) for each in own)
        if len(self._table) > num_rows:
            problems.append(f"{len(self._table)} rows, at most {num_rows} expected")
        return "; ".join(problems[:3]) or None, NUM_THREADS * _CALLS_PER_THREAD

    def _work(self, thread: int) -> Counter[int]:
        """Makes the calls of one thread; returns how often it added to each id."""
        draw, added = random.Random(f"{self._seed} {thread}"), Counter[int]()  # noqa: S311 - to repeat
        self._together.wait(_WAIT_SECONDS)
        calls: list[Callable[[random.Random, int], NDArray[np.int64] | None]] = [
            self._add,
            self._add,
            self._learn,
            self._look,
            self._own,
            self._refused,
            self._whole,
        ]
        for _ in range(_CALLS_PER_THREAD):
            ids = draw.choice(calls)(draw, thread)
            if ids is not None:
                added.update(ids.tolist())
        return added

    def _add(self, draw: random.Random, _: int) -> NDArray[np.int64]:
        ids = _some(draw)
        self._table.assign_add(ids, np.ones((len(ids), _DIM), np.float32))
        return ids

    def _learn(self, draw: random.Random, _: int) -> NDArray[np.int64]:
        ids = _some(draw)
        self._table.apply_gradients(ids, -np.ones((len(ids), _DIM), np.float32))
        return ids

    def _look(self, draw: random.Random, _: int) -> None:
        rows = self._table.lookup(_some(draw))
        if (rows != rows[:, :1]).any():
            self._torn.append("a torn row was read")

    def _own(self, draw: random.Random, thread: int) -> None:
        """Assigns and erases ids that no other thread has."""
        ids = draw.choice([self._own_ids(thread), self._own_ids(thread)[:5]])
        self._table.assign(ids, np.full((len(ids), _DIM), float(thread), np.float32))
        if (self._table.lookup(ids) != thread).any():
            self._torn.append(f"thread {thread} does not find what it has just written")
        if draw.random() < 0.5:
            self._table.erase(ids)

    def _refused(self, draw: random.Random, _: int) -> None:
        """Makes invalid calls, which must have no effect."""
        ids = _some(draw)
        wrong: list[tuple[Any, Any]] = [
            (ids, np.ones((len(ids), _DIM + 1), np.float32)),
            (ids[:-1], np.ones((len(ids), _DIM), np.float32)),
            (ids, np.full((len(ids), _DIM), np.nan, np.float32)),
            (ids.astype(np.float64), np.ones((len(ids), _DIM), np.float32)),
        ]
        try:
            self._table.apply_gradients(*draw.choice(wrong))
        except (TypeError, ValueError):
            return
        self._torn.append("a wrong call was taken")

    def _whole(self, draw: random.Random, _: int) -> None:
        """Makes calls on the complete table."""
        if draw.random() < 0.3:
            self._table.evict()
        len(self._table)

    @staticmethod
    def _own_ids(thread: int) -> NDArray[np.int64]:
        return np.arange(20, dtype=np.int64) + 1_000_000 * (thread + 1)


def _some(draw: random.Random) -> NDArray[np.int64]:
    return np.array(draw.choices(range(_NUM_IDS), k=draw.randint(1, 200)), np.int64)
