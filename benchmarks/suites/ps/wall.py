"""Table steps per second of one worker and one server on two cores, against a store of the worker's own process."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.suites.processes import on_cores
from benchmarks.suites.ps.servers import running_servers
from benchmarks.suites.table_steps import TableSteps, configs, fill, gradient_of
from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, median_ratio, spread, tell
from monolith.cli._bench.timing import TimedStep, take_turns
from monolith.tables import LocalStore

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting
    from monolith.tables import Store

CORES = 2
LEAST_AHEAD, LEAST_IN_TURN = 0.7, 0.55
HERE = "LocalStore"


def measure(setting: Setting) -> list[Measurement]:
    """With the rows of one batch read ahead and postponed pushes, and with every call waited for."""
    ours.use_threads(CORES)
    num_rows = setting.small_rows
    batches, gradient = workload.zipf_batches(setting, num_rows), gradient_of(setting)
    with (
        on_cores(CORES),
        running_servers(1, threads=CORES) as servers,
        servers.open_store(configs()) as store,
    ):
        tell(f"    filling {num_rows:,} rows, here and on a server")
        stores: dict[str, Store] = {"server": store, HERE: LocalStore(configs())}
        steps = {}
        for name, each in stores.items():
            fill(each, num_rows)
            for worker, way in enumerate(("ahead", "waiting")):
                steps[name, way] = TableSteps(each, worker, gradient)
        contestants = {
            f"{name}, {way}": TimedStep(made.train_ahead if way == "ahead" else made.train, batches)
            for (name, way), made in steps.items()
        }
        rates = take_turns(contestants, rounds=setting.rounds, seconds=setting.seconds)
        for made in steps.values():
            made.settle()
    return [
        _judge(rates[f"server, {way}"], rates[f"{HERE}, {way}"], words, limit)
        for way, words, limit in (
            ("ahead", "one batch read ahead, postponed pushes", LEAST_AHEAD),
            ("waiting", "without pipelining", LEAST_IN_TURN),
        )
    ]


def _judge(remote: list[float], local: list[float], words: str, limit: float) -> Measurement:
    return Measurement(
        row="ps_wall",
        measure=f"plan + read + apply, a worker and a server on {CORES} cores, {words}",
        figure=statistics.median(remote),
        unit="steps/s",
        peer=f"{HERE} there",
        peer_figure=statistics.median(local),
        ratio=median_ratio(remote, local),
        limit=limit,
        note=f"server {spread(remote)}, here {spread(local)}",
    )
