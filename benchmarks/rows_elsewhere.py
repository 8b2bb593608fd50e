"""Measures what of a store's latency a session hides: steps over rows that answer later, with and without a pipeline.

    python benchmarks/rows_elsewhere.py
    python benchmarks/rows_elsewhere.py --quick         # does everything run?

The rows are in this process, but every call of their store is made by a thread of its own, the stated time after it was
sent, one after the other, as a server on a network would; the model sleeps the stated time. So a step takes the
model's time, and of two calls (rows of the batch, gradients of it) what was not hidden. Ways take turns, in rounds.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import sys
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch

import monolith as ml
from monolith.tables import LocalStore, Traits
from monolith.tables.local.store import LocalWorkerSession
from monolith.train import PipelineConfig, Session, Spec, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from monolith.tables import Applied, Pending, Plan, Rows, TableConfig, Update

LATENCY_SECONDS = 0.005
LEAST_HIDDEN = 0.9
WAYS = {
    "one after the other": PipelineConfig(),
    "postpush": PipelineConfig(postpush=True, wait_for_batches=True),
    "prefetch 1": PipelineConfig(prefetch=1, wait_for_batches=True),
    "prefetch 1, postpush": PipelineConfig(prefetch=1, postpush=True, wait_for_batches=True),
}
HIDING = "prefetch 1, postpush"


class LateResult:
    """A `Pending` that a thread answers."""

    def __init__(self, future: Future[Any]) -> None:
        self.done = future.done
        self._future = future

    def result(self, timeout_seconds: float | None = None) -> Any:
        """Waits for it."""
        return self._future.result(timeout_seconds)


class Line:
    """Calls in their order, each made when its time has come."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[float, Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def send(self, call: Callable[[], Any]) -> LateResult:
        """Sends a call; it is in flight when this returns."""
        future: Future[Any] = Future()
        self._calls.put((time.perf_counter() + LATENCY_SECONDS, future, call))
        return LateResult(future)

    def close(self) -> None:
        """Ends the thread after the last call."""
        self._calls.put(None)
        self._thread.join()

    def _answer(self) -> None:
        while (sent := self._calls.get()) is not None:
            due, future, call = sent
            time.sleep(max(0.0, due - time.perf_counter()))
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - the answer
                future.set_exception(error)


class LateJoined(LocalWorkerSession):
    """Sends its calls."""

    _store: LateStore

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Rows, later."""
        now = super().read
        return self._store.line.send(lambda: now(plan, after=after, step=step, train=train).result())

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """An update, later."""
        now = super().apply
        return self._store.line.send(lambda: now(updates, rule).result())


class LateStore(LocalStore):
    """Rows that seem to be elsewhere."""

    traits = Traits(remote=True)

    def __init__(self, configs: Mapping[str, TableConfig]) -> None:
        super().__init__(configs)
        self.line = Line()

    def join(self, worker: int) -> LateJoined:
        """As a worker whose calls take their time."""
        return LateJoined(self, worker)

    def close(self) -> None:
        """Its thread, too."""
        self.line.close()
        super().close()


class Sleeping(Task):
    """A model that takes the given time."""

    seconds = 0.0

    def build(self) -> None:
        """One slot."""
        self.emb = ml.Embeddings({"user": ml.Slot(dim=16)}, store=LateStore)

    def model_fn(self, features: Any, mode: Any) -> Spec:  # noqa: ARG002 - trained only
        """Looks up immediately, as models do, and sleeps."""
        loss = self.emb(features)["user"].sum()
        time.sleep(self.seconds)
        return Spec(loss)


def step_ms(pipeline: PipelineConfig, seconds: float, steps: int) -> float:
    """Time of one step, from the first to the fence after the last."""
    task = Sleeping()
    task.seconds = seconds
    batch = {"user": torch.arange(256), "req_time": torch.ones(256, dtype=torch.int64)}
    with Session(task, pipeline=pipeline) as session, session.feed([batch] * (steps + 2)) as feed:
        session.run_next(feed)
        start = time.perf_counter()
        for _ in range(steps):
            session.run_next(feed)
        session.settle()
        taken = time.perf_counter() - start
    task.emb.store.close()
    return 1000 * taken / steps


def main() -> int:
    """Prints the table; returns 1 if a pipeline hides less than it must where the model takes long enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    args = parser.parse_args()
    rounds, steps = (2, 10) if args.quick else (5, 50)
    latency = 1000 * LATENCY_SECONDS
    print(f"| model ms | {' | '.join(f'{name} ms' for name in WAYS)} | hidden of {2 * latency:g} ms |")
    print("|---|" + "---|" * (len(WAYS) + 1))
    is_good = True
    for seconds in (0.002, 0.006, 0.02):
        found = [[step_ms(pipeline, seconds, steps) for pipeline in WAYS.values()] for _ in range(rounds)]
        medians = dict(zip(WAYS, map(statistics.median, zip(*found, strict=True)), strict=True))
        hidden = (medians["one after the other"] - medians[HIDING]) / (2 * latency)
        is_good = is_good and (seconds < LATENCY_SECONDS or hidden >= LEAST_HIDDEN)
        print(f"| {1000 * seconds:g} | {' | '.join(f'{each:.2f}' for each in medians.values())} | {hidden:.0%} |")
    return 0 if is_good or args.quick else 1


if __name__ == "__main__":
    sys.exit(main())
