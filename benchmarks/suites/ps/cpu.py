"""Processor time that a store in another process adds, against the bare movement of the same bytes."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.suites.processes import cpu_seconds
from benchmarks.suites.ps.servers import running_servers
from benchmarks.suites.ps.socket_loop import StepBytes, running_loop
from benchmarks.suites.table_steps import TableSteps, configs, fill, gradient_of
from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread, tell
from monolith.cli._bench.timing import WARM_UP_STEPS, quiet_collector
from monolith.tables import LocalStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.suites.ps.socket_loop import Moved, SocketLoop
    from monolith.cli._bench.setting import Setting
    from monolith.cli._bench.workload import WorkloadBatch

MOST_ADDED = 0.9
MOST_OF_SERVER = 1.4
BUFFERS = 64


class Spent(NamedTuple):
    """Processor time of one step, in seconds."""

    worker: float
    server: float
    plan: float
    """Part of `worker`."""

    @property
    def total(self) -> float:
        """Of both ends."""
        return self.worker + self.server


class Contestant:
    """Steps on one store, measured by the CPU time of all processes involved."""

    def __init__(self, steps: TableSteps, server_pids: Sequence[int], batches: Sequence[WorkloadBatch]) -> None:
        self._steps, self._pids, self._batches = steps, server_pids, batches
        self._next = 0

    def turn(self, seconds: float) -> Spent:
        """Returns the mean step of about `seconds`."""
        self._advance(WARM_UP_STEPS)
        begun, count = time.perf_counter(), 0
        own, servers, plans = time.process_time(), cpu_seconds(self._pids), self._steps.plan_seconds
        while count == 0 or time.perf_counter() - begun < seconds:
            self._advance(1)
            count += 1
        return Spent(
            (time.process_time() - own) / count,
            (cpu_seconds(self._pids) - servers) / count,
            (self._steps.plan_seconds - plans) / count,
        )

    def _advance(self, count: int) -> None:
        for _ in range(count):
            self._steps.train(self._batches[self._next])
            self._next = (self._next + 1) % len(self._batches)


def measure(setting: Setting) -> list[Measurement]:
    """Both sizes of table, one thread each."""
    ours.use_threads(1)
    with running_loop() as loop:
        return [
            each for rows in (setting.small_rows, setting.large_rows) for each in _measure_size(setting, rows, loop)
        ]


def _measure_size(setting: Setting, num_rows: int, loop: SocketLoop) -> list[Measurement]:
    batches, gradient = workload.zipf_batches(setting, num_rows), gradient_of(setting)
    size = bytes_of(batches)
    local, moved, hot, remote = list[Spent](), list["Moved"](), list["Moved"](), list[Spent]()
    with running_servers(1, threads=1) as servers, servers.open_store(configs()) as store:
        tell(f"    filling {num_rows:,} rows, here and on a server")
        here = LocalStore(configs())
        for each in (here, store):
            fill(each, num_rows)
        mine = Contestant(TableSteps(here, 0, gradient), (), batches)
        theirs = Contestant(TableSteps(store, 0, gradient), servers.pids, batches)
        steps = max(1, int(setting.seconds * 200))
        with quiet_collector():
            for _ in range(setting.rounds):
                local.append(mine.turn(setting.seconds))
                moved.append(loop.turn(size, buffers=min(BUFFERS, len(batches)), steps=steps))
                remote.append(theirs.turn(setting.seconds))
                hot.append(loop.turn(size, buffers=1, steps=steps))
    return _judge(num_rows, size, local, remote, moved, hot)


def bytes_of(batches: Sequence[WorkloadBatch]) -> StepBytes:
    """Returns the bytes of the mean batch: its distinct ids, their rows, and their gradients."""
    distinct = statistics.mean(len(np.unique(batch.ids.numpy())) for batch in batches)
    return StepBytes(ask=int(8 * distinct), rows=int(4 * ours.DIM * distinct), push=int(4 * ours.DIM * distinct))


def _judge(
    num_rows: int,
    size: StepBytes,
    local: list[Spent],
    remote: list[Spent],
    moved: list[Moved],
    hot: list[Moved],
) -> list[Measurement]:
    added = [1e3 * (there.total - here.total) for here, there in zip(local, remote, strict=True)]
    bare, in_cache = [1e3 * each.cpu_seconds for each in moved], [1e3 * each.cpu_seconds for each in hot]
    server = [1e3 * each.server for each in remote]
    work = [1e3 * (each.worker - each.plan) for each in local]
    medians = {
        "here": statistics.median(1e3 * each.total for each in local),
        "worker": statistics.median(1e3 * each.worker for each in remote),
        "server": statistics.median(server),
    }
    parts = ", ".join(f"{name} {value:.2f} ms" for name, value in medians.items())
    return [
        Measurement(
            row="ps_cpu",
            measure=f"processor time that both ends add to plan + read + apply, {num_rows:,} rows",
            figure=statistics.median(added),
            unit="ms",
            peer="bare socket loop",
            peer_figure=statistics.median(bare),
            ratio=median_ratio(added, bare),
            limit=MOST_ADDED,
            sense=Sense.AT_MOST,
            note=f"{size.total / 1e6:.2f} MB a step; {parts}; added {spread(added)} ms, bare {spread(bare)} ms;"
            f" with one buffer that stays in the cache the loop takes {statistics.median(in_cache):.2f} ms",
        ),
        Measurement(
            row="ps_cpu",
            measure=f"processor time of the server, {num_rows:,} rows",
            figure=statistics.median(server),
            unit="ms",
            peer="read + apply in process",
            peer_figure=statistics.median(work),
            ratio=median_ratio(server, work),
            limit=MOST_OF_SERVER,
            sense=Sense.AT_MOST,
            note=f"server {spread(server)} ms, in process {spread(work)} ms",
        ),
    ]
