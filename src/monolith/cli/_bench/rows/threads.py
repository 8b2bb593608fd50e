"""What more threads give, on tables of every size of both workloads."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING

from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, median_ratio, spread
from monolith.cli._bench.progress import tell
from monolith.cli._bench.skip import RowSkippedError
from monolith.cli._bench.timing import Contestant, quiet_collector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.cli._bench.setting import Setting

LIMITS = {
    (1, 2): {"A": 1.6, "B": 1.8},
    (1, 8): {"A": 6.5, "B": 6.5},
    (8, 16): {"A": 1.3, "B": 1.3},
}
"""By fewer and more threads, each with a core of its own; other steps are shown and not judged."""


def measure(setting: Setting) -> list[Measurement]:
    """Measures lookup and the complete step, workload A on the small and large table, B on the large and huge one."""
    counts = setting.thread_counts or (1, setting.threads)
    if len(set(counts)) < 2:
        raise RowSkippedError(
            "there is nothing to compare with one thread; give --threads 2 on a machine with two cores"
        )
    tables = [("A", setting.small_rows), ("A", setting.large_rows), ("B", setting.large_rows), ("B", setting.huge_rows)]
    return [
        measurement
        for name, rows in dict.fromkeys(tables)
        for measurement in _measure_table(setting, name, rows, counts)
    ]


def _measure_table(setting: Setting, name: str, num_rows: int, counts: Sequence[int]) -> list[Measurement]:
    tell(f"    {name}, {num_rows:,} rows, threads {' '.join(map(str, counts))}")
    ours.use_threads(max(counts))
    table = ours.Ours(ours.new_table(), workload.output_gradient(setting.ids_per_batch, ours.DIM))
    ours.fill(table.table, num_rows)
    batches = (workload.zipf_batches if name == "A" else workload.uniform_batches)(setting, num_rows)
    steps = {"lookup": table.lookup, "lookup + apply_gradients": table.train}
    found = []
    for step_name, step in steps.items():
        rates = _rates(setting, counts, Contestant(step, batches))
        measure = f"threads: {step_name}, {name}, {num_rows:,} rows"
        found += [_compare(f"{measure}, {more}", name, rates, (fewer, more)) for fewer, more in pairwise(counts)]
    return found


def _rates(setting: Setting, counts: Sequence[int], contestant: Contestant[workload.Batch]) -> dict[int, list[float]]:
    """Returns thousands of examples per second by number of threads, alternating."""
    rates: dict[int, list[float]] = {count: [] for count in counts}
    with quiet_collector():
        for _ in range(setting.rounds):
            for count, found in rates.items():
                ours.use_threads(count)
                found.append(contestant.turn(setting.seconds) * setting.examples / 1e3)
    return rates


def _compare(measure: str, name: str, rates: dict[int, list[float]], counts: tuple[int, int]) -> Measurement:
    few, many = (rates[count] for count in counts)
    return Measurement(
        row="threads",
        measure=measure,
        figure=statistics.median(many),
        unit="k examples/s",
        peer=f"{counts[0]} threads" if counts[0] > 1 else "one thread",
        peer_figure=statistics.median(few),
        ratio=median_ratio(many, few),
        limit=LIMITS.get(counts, {}).get(name),
        note=f"{counts[1]} threads; {spread(many)}",
    )
