"""What more threads give, on tables of every size of both workloads."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, median_ratio, spread
from monolith.cli._bench.progress import tell
from monolith.cli._bench.skip import RowSkippedError
from monolith.cli._bench.timing import Contestant, quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cli._bench.setting import Setting

LIMITS = {"A": 1.6, "B": 1.8}
"""For two threads; with more of them the ratio is shown and not judged."""


def measure(setting: Setting) -> list[Measurement]:
    """Lookup and the whole step, workload A on the small and large table, B on the large and huge one."""
    if setting.threads < 2:
        raise RowSkippedError(
            "there is nothing to compare with one thread; give --threads 2 on a machine with two cores"
        )
    return [
        *_measure_table(setting, "A", setting.small_rows, workload.zipf_batches),
        *_measure_table(setting, "A", setting.large_rows, workload.zipf_batches),
        *_measure_table(setting, "B", setting.large_rows, workload.uniform_batches),
        *_measure_table(setting, "B", setting.huge_rows, workload.uniform_batches),
    ]


def _measure_table(
    setting: Setting, name: str, num_rows: int, draw: Callable[[Setting, int], list[workload.Batch]]
) -> list[Measurement]:
    tell(f"    {name}, {num_rows:,} rows")
    ours.use_threads(setting.threads)
    table = ours.Ours(ours.new_table(), workload.output_gradient(setting.ids_per_batch, ours.DIM))
    ours.fill(table.table, num_rows)
    batches = draw(setting, num_rows)
    steps: dict[str, Callable[[workload.Batch], object]] = {
        "lookup": table.lookup,
        "lookup + apply_gradients": table.train,
    }
    return [
        _compare(setting, f"threads: {step_name}, {name}, {num_rows:,} rows", name, Contestant(step, batches))
        for step_name, step in steps.items()
    ]


def _compare(setting: Setting, measure: str, name: str, contestant: Contestant[workload.Batch]) -> Measurement:
    many: list[float] = []
    one: list[float] = []
    with quiet_collector():
        for _ in range(setting.rounds):
            for threads, rates in ((setting.threads, many), (1, one)):
                ours.use_threads(threads)
                rates.append(contestant.turn(setting.seconds) * setting.examples / 1e3)
    return Measurement(
        row="threads",
        measure=measure,
        figure=statistics.median(many),
        unit="k examples/s",
        peer="one thread",
        peer_figure=statistics.median(one),
        ratio=median_ratio(many, one),
        limit=LIMITS[name] if setting.threads == 2 else None,
        note=f"{setting.threads} threads; {spread(many)}",
    )
