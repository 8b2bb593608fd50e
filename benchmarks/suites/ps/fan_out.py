"""What a worker spends on many servers against what it spends on one."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.suites.ps.cpu import Contestant
from benchmarks.suites.ps.servers import running_servers
from benchmarks.suites.table_steps import TableSteps, configs, fill, gradient_of
from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread
from monolith.cli._bench.timing import quiet_collector

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

MANY = 8
LIMIT = 1.5


def measure(setting: Setting) -> list[Measurement]:
    """Measures the CPU time of a step in the worker's process, alternating between one server and eight."""
    ours.use_threads(1)
    num_rows = setting.small_rows
    batches, gradient = workload.zipf_batches(setting, num_rows), gradient_of(setting)
    spent: dict[int, list[float]] = {1: [], MANY: []}
    with ExitStack() as running:
        contestants = {}
        for count in spent:
            servers = running.enter_context(running_servers(count, threads=1))
            store = running.enter_context(servers.open_store(configs()))
            fill(store, num_rows)
            contestants[count] = Contestant(TableSteps(store, 0, gradient), servers.pids, batches)
        with quiet_collector():
            for _ in range(setting.rounds):
                for count, contestant in contestants.items():
                    spent[count].append(1e3 * contestant.turn(setting.seconds).worker)
    return [
        Measurement(
            row="ps_fan_out",
            measure=f"the worker's processor time for a step with {MANY} servers",
            figure=statistics.median(spent[MANY]),
            unit="ms",
            peer="with 1 server",
            peer_figure=statistics.median(spent[1]),
            ratio=median_ratio(spent[MANY], spent[1]),
            limit=LIMIT,
            sense=Sense.AT_MOST,
            note=f"{MANY} servers {spread(spent[MANY])} ms, 1 server {spread(spent[1])} ms",
        )
    ]
