"""Measures what prefetching costs: batches taken through a queue, against the bare function that makes them.

    python benchmarks/prefetch.py
    python benchmarks/prefetch.py --quick         # does everything run?

The function returns a ready-made structure, so nothing overlaps and all that is measured is the way through the queue:
checking the structure, locks, and two switches of threads, for which a busy machine makes threads wait. Both sides take
turns in one process, in rounds; the added time is the median of the rounds' differences. Processor time counts all
threads. "Ready" is what a step notices when its batch waits already, the aim of prefetching. The second table is the
other side of it: a function and a step that take a given time, of which the shorter should disappear.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.data.prefetch import MultiQueueRunner, enqueue_dicts_with_queue_return
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ADDED_US = 50.0
ROWS = 4096


class Workload(NamedTuple):
    """A structure to carry."""

    name: str
    batch: Any


def workloads() -> list[Workload]:
    """From one tensor to the batch of a recommender with 26 slots."""
    ids = Ragged.from_lengths(torch.arange(2 * ROWS), torch.full((ROWS,), 2))
    slots = {f"slot{number}": Ragged(ids.flat_values.clone(), ids.row_splits.clone()) for number in range(26)}
    dense = {"dense": torch.zeros(ROWS, 13), "label": torch.zeros(ROWS), "line_id": torch.arange(ROWS)}
    return [
        Workload("one tensor", {"x": torch.zeros(ROWS, 16)}),
        Workload("26 ragged slots, 3 dense", {**slots, **dense, "position": 7}),
        Workload("200 tensors", {f"x{number}": torch.zeros(ROWS) for number in range(200)}),
    ]


def always(batch: Any) -> Callable[[], Any]:
    """A function that takes no time to make its batch."""
    return lambda: batch


def through_a_queue(make: Callable[[], Any], capacity: int) -> tuple[Callable[[], Any], MultiQueueRunner]:
    """The function that takes from the queue, and what fills it."""
    take, queue = enqueue_dicts_with_queue_return(make, capacity)
    if queue is None:
        raise ValueError("capacity 0 has no queue to measure")
    return take, MultiQueueRunner(queue.queues, [queue.enqueue_op])


def bare_us(make: Callable[[], Any], num_batches: int) -> float:
    """Time of one batch straight from the function."""
    start = time.perf_counter()
    for _ in range(num_batches):
        make()
    return (time.perf_counter() - start) / num_batches * 1e6


class Prefetched(NamedTuple):
    """Times of one batch through a queue, in microseconds."""

    wall: float
    processor: float
    ready: float


def prefetched_us(make: Callable[[], Any], num_batches: int, capacity: int) -> Prefetched:
    """Takes batches as fast as they come, then some that wait already."""
    take, runner = through_a_queue(make, capacity)
    with runner:
        for _ in range(20):
            take()
        start = time.process_time()
        wall = bare_us(take, num_batches)
        processor = (time.process_time() - start) / num_batches * 1e6
        ready = []
        for _ in range(20):
            time.sleep(0.002)
            ready.append(bare_us(take, 1))
        return Prefetched(wall, processor, statistics.median(ready))


def report_added(num_rounds: int, num_batches: int) -> bool:
    """Prints the table of added times; returns whether all stay within the limit."""
    print(
        f"| batch | capacity | bare us | prefetched us | added us (limit {MAX_ADDED_US:g}) | processor us | ready us |"
    )
    print("|---|---|---|---|---|---|---|")
    within = True
    for name, batch in workloads():
        for capacity in (1, 2, 8):
            rounds = [
                (bare_us(always(batch), num_batches), prefetched_us(always(batch), num_batches, capacity))
                for _ in range(num_rounds)
            ]
            added = statistics.median(ours.wall - bare for bare, ours in rounds)
            within = within and added < MAX_ADDED_US
            bare = statistics.median(bare for bare, _ in rounds)
            wall, processor, ready = (
                statistics.median(times) for times in zip(*(ours for _, ours in rounds), strict=True)
            )
            print(
                f"| {name} | {capacity} | {bare:.2f} | {wall:.1f} | {added:.1f} | {processor:.1f} | {ready:.1f} |",
                flush=True,
            )
    return within


def report_overlap(num_rounds: int, num_batches: int) -> None:
    """Prints how much of making a batch the step hides."""
    print("\n| making ms | step ms | one after the other ms | prefetched ms | hidden of the shorter |")
    print("|---|---|---|---|---|")
    for making, step in ((0.001, 0.002), (0.002, 0.002), (0.002, 0.001)):

        def make(seconds: float = making) -> Any:
            time.sleep(seconds)
            return {"x": torch.zeros(ROWS)}

        def loop(take: Callable[[], Any], seconds: float = step) -> float:
            def both() -> None:
                take()
                time.sleep(seconds)

            return bare_us(both, num_batches) / 1e3

        rounds = []
        for _ in range(num_rounds):
            take, runner = through_a_queue(make, 1)
            serial = loop(make)
            with runner:
                rounds.append((serial, loop(take)))
        serial, ours = (statistics.median(side) for side in zip(*rounds, strict=True))
        hidden = (serial - ours) / (min(making, step) * 1e3)
        print(f"| {making * 1e3:g} | {step * 1e3:g} | {serial:.2f} | {ours:.2f} | {hidden:.0%} |", flush=True)


def main() -> int:
    """Prints both tables; returns 1 if prefetching adds more than its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    args = parser.parse_args()
    num_rounds, num_batches = (2, 50) if args.quick else (9, 2000)
    within = report_added(num_rounds, num_batches)
    report_overlap(num_rounds, max(20, num_batches // 10))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
