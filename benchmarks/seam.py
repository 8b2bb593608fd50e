"""What the store interface costs: workers side by side, blocks loaded, a step through a session.

    python benchmarks/seam.py            # about a minute
    python benchmarks/seam.py --quick    # does everything run?

- workers: updates per second of 4 workers that push to one `LocalStore` from 4 threads, over those of one worker; the
  core's own threads are held to one, so that a push is one thread's work. At least 2.5 on 4 cores or more;
- load: `LocalStore.load` of 1,000 rows in about 640 blocks; at most 1 ms;
- session: a step of a `Session` over the same step in a plain loop, both with a model of one number; at most 90 us.

Each figure is the median over rounds in which both ways alternate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from monolith import _core
from monolith.tables import BatchStamp, LocalStore, Segment, TableConfig, TableGroup, Update
from monolith.tables.row_optimizers import Adagrad
from monolith.train import Session, Spec, Task

if TYPE_CHECKING:
    from monolith.tables import Plan, WorkerSession

NUM_WORKERS = 4
IDS = 10_000
ROWS = 1_000_000
DIM = 16
ROUNDS = 9


class Pushes:
    """The updates of one worker, planned before anyone is timed."""

    def __init__(self, store: LocalStore, worker: int, count: int) -> None:
        self._joined: WorkerSession = store.join(worker)
        self._next = 0
        ids = torch.from_numpy(np.random.default_rng(worker).integers(0, ROWS, (count, IDS)))
        splits = torch.tensor([0, IDS])
        self._plans: list[Plan] = [
            self._joined.plan(ids[n], splits, stamp=BatchStamp(worker=worker, seq=n)) for n in range(count)
        ]
        self._gradients = torch.ones(IDS * DIM)
        self._rates = torch.full((1,), 0.05)

    def push(self, count: int) -> None:
        """The next ones."""
        for plan in self._plans[self._next : self._next + count]:
            rule = Update(previous=plan.stamp.seq - 1, step=0, learning_rates=self._rates, times=0, known_finite=True)
            self._joined.apply([(plan, self._gradients[: plan.num_values])], rule).result()
        self._next += count


def workers_ratio(updates: int, rounds: int) -> float:
    """Updates per second of four workers over those of one."""
    threads_before = _core.num_threads()
    _core.set_num_threads(1)
    try:
        store = LocalStore({"user": TableConfig([Segment(DIM, optimizer=Adagrad())])})
        TableGroup.of_store(store)["user"].reinitialize(np.arange(ROWS))
        pushes = [Pushes(store, worker, updates * (2 * rounds + 1)) for worker in range(NUM_WORKERS)]
        for each in pushes:
            each.push(updates)
        ratios = []
        for _ in range(rounds):
            alone = _seconds(pushes[:1], updates)
            ratios.append(NUM_WORKERS * alone / _seconds(pushes, updates))
        return statistics.median(ratios)
    finally:
        _core.set_num_threads(threads_before)


def _seconds(pushes: list[Pushes], updates: int) -> float:
    threads = [threading.Thread(target=each.push, args=(updates,)) for each in pushes]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


def load_seconds(rounds: int) -> tuple[float, int]:
    """Median time of loading 1,000 rows, and in how many blocks they were."""
    configs = {"user": TableConfig([Segment(DIM, optimizer=Adagrad())])}
    source = LocalStore(configs)
    TableGroup.of_store(source)["user"].assign(np.arange(1000), np.ones((1000, DIM), np.float32))
    with source.cut() as cut:
        blocks = list(cut.blocks())
    times = []
    for _ in range(rounds):
        target = LocalStore(configs)
        begun = time.perf_counter()
        target.load(blocks, buckets=range(1024), replace=True)
        times.append(time.perf_counter() - begun)
    return statistics.median(times), len(blocks)


class OneNumber(Task):
    """A model that costs as little as one can."""

    def build(self) -> None:
        """One weight."""
        self.weight = nn.Linear(1, 1, bias=False)

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        """Plain descent."""
        return torch.optim.SGD(model.parameters(), lr=0.0)

    def model_fn(self, features: Any, mode: str) -> Spec:  # noqa: ARG002 - trained only
        """Its output is its loss."""
        return Spec(self.weight(features).sum())


def session_microseconds(steps: int, rounds: int) -> float:
    """What a step of a session takes beyond that of a plain loop."""
    batch = torch.ones(1, 1)
    plain = OneNumber()
    optimizer = plain.optimizers(plain.make_model())
    with Session(OneNumber()) as session:
        extra = []
        for _ in range(rounds):
            begun = time.perf_counter()
            for _ in range(steps):
                spec = plain.model_fn(batch, "train")
                optimizer.zero_grad()
                spec.loss.backward()  # type: ignore[union-attr]
                optimizer.step()
            between = time.perf_counter()
            for _ in range(steps):
                session.run(batch)
            extra.append((time.perf_counter() - between) - (between - begun))
    return statistics.median(extra) / steps * 1e6


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: does everything run?")
    quick = parser.parse_args().quick
    rounds, updates, steps = (3, 3, 50) if quick else (ROUNDS, 30, 2000)
    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    ratio = workers_ratio(updates, rounds)
    load, num_blocks = load_seconds(rounds)
    session = session_microseconds(steps, rounds)
    print("| Measure | Figure | Limit | |")
    print("|---|---|---|---|")
    enough = "fewer than 4 cores" if cores < NUM_WORKERS else "ok" if ratio >= 2.5 else "NO"
    print(f"| 4 workers over 1, {cores} cores | {ratio:.2f} | at least 2.5 | {enough} |")
    print(f"| load 1,000 rows in {num_blocks} blocks | {load * 1e3:.2f} ms | 1 ms | {'ok' if load <= 1e-3 else 'NO'} |")
    print(f"| session beyond a plain loop | {session:.0f} us | 90 us | {'ok' if session <= 90 else 'NO'} |")


if __name__ == "__main__":
    main()
