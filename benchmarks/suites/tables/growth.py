"""A table that grows from empty: no batch may stand out, and memory may not peak above what remains."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from monolith.cli._bench import machine, ours, runner
from monolith.cli._bench.measurement import Measurement, Sense, spread, tell
from monolith.cli._bench.timing import percentile, quiet_collector

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

RUNS = 3
"""Fresh processes; the median of each figure counts."""


def measure(setting: Setting) -> list[Measurement]:
    """Slowest batch and 99th percentile against the median batch, peak memory against the final."""
    runs = []
    for number in range(RUNS):
        tell(f"    run {number + 1} of {RUNS}: {setting.huge_rows:,} rows")
        runs.append(runner.call("benchmarks.suites.tables.growth:grow", setting))
    name = f"growth from empty to {setting.huge_rows:,} rows"
    return [
        _compare(
            f"{name}: slowest batch", "ms", "median batch", 8.0, [(run["slowest"], run["median"]) for run in runs]
        ),
        _compare(f"{name}: p99 batch", "ms", "median batch", 4.0, [(run["p99"], run["median"]) for run in runs]),
        _compare(f"{name}: peak memory", "MiB", "final", 1.1, [(run["peak"], run["final"]) for run in runs]),
    ]


def grow(setting: Setting) -> dict[str, Any]:
    """Grows a table in this process; returns batch times in ms, and the table's memory in MiB."""
    ours.use_threads(setting.threads)
    gradient = torch.zeros(setting.ids_per_batch, ours.DIM)
    ours.warm_up(setting.ids_per_batch)
    before = machine.resident_bytes()
    table, times = ours.new_table(), []
    with quiet_collector():
        for ids in ours.id_ranges(setting.huge_rows, setting.ids_per_batch):
            start = time.perf_counter()
            table.apply_gradients(ids, gradient[: len(ids)], time=ours.TIME)
            if len(ids) == setting.ids_per_batch:
                times.append((time.perf_counter() - start) * 1e3)
    return {
        "slowest": max(times),
        "p99": percentile(times, 99),
        "median": statistics.median(times),
        "peak": (machine.peak_resident_bytes() - before) / 2**20,
        "final": (machine.resident_bytes() - before) / 2**20,
        "rows": len(table),
    }


def _compare(measure: str, unit: str, peer: str, limit: float, pairs: list[tuple[float, float]]) -> Measurement:
    ratios = [figure / base for figure, base in pairs]
    return Measurement(
        row="growth",
        measure=measure,
        figure=statistics.median(figure for figure, _ in pairs),
        unit=unit,
        peer=peer,
        peer_figure=statistics.median(base for _, base in pairs),
        ratio=statistics.median(ratios),
        limit=limit,
        sense=Sense.AT_MOST,
        note=f"ratios of {len(ratios)} runs {spread(ratios)}",
    )
