"""What four workers on four servers do against one on one."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.suites.processes import on_cores
from benchmarks.suites.ps.servers import running_servers
from benchmarks.suites.ps.worker import running_workers
from benchmarks.suites.table_steps import configs, fill
from monolith.cli._bench.measurement import Measurement, median_ratio, spread, tell

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

MANY = 4
CORES = 16
THREADS = 2
"""Of every process: eight of them then have the cores that there are."""
LIMIT = 3.0


def measure(setting: Setting) -> list[Measurement]:
    """Measures the total steps per second of all workers, alternating; both clusters run, one of them idle."""
    num_rows = setting.small_rows
    rates: dict[int, list[float]] = {1: [], MANY: []}
    with ExitStack() as running:
        running.enter_context(on_cores(CORES))
        clusters = {}
        for count in rates:
            servers = running.enter_context(running_servers(count, threads=THREADS))
            tell(f"    filling {num_rows:,} rows on {count} servers")
            with servers.open_store(configs()) as store:
                fill(store, num_rows)
            clusters[count] = running.enter_context(
                running_workers(servers, count, setting, num_rows=num_rows, threads=THREADS)
            )
        for _ in range(setting.rounds):
            for count, workers in clusters.items():
                rates[count].append(sum(turn.rate for turn in workers.turn(setting.seconds)))
    return [
        Measurement(
            row="ps_scale",
            measure=f"plan + read + apply, {MANY} workers x {MANY} servers on {CORES} cores",
            figure=statistics.median(rates[MANY]),
            unit="steps/s",
            peer="1 x 1",
            peer_figure=statistics.median(rates[1]),
            ratio=median_ratio(rates[MANY], rates[1]),
            limit=LIMIT,
            note=f"{MANY} x {MANY} {spread(rates[MANY])}, 1 x 1 {spread(rates[1])}",
        )
    ]
