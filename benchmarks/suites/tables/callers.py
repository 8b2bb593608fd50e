"""Several Python threads that train on one table concurrently, against one: total and per thread."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING, Final

from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, median_ratio
from monolith.cli._bench.timing import WARM_UP_STEPS, quiet_collector

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

CALLERS: Final = 4
LIMITS: Final = {8: 1.5}
"""Limits by threads of the core: one caller leaves some of eight idle, but keeps two busy by itself."""
LEAST_SHARE: Final = 0.5
"""Minimum share of an equal split per caller: a caller with less starves."""

Batches = list[workload.WorkloadBatch]


def measure(setting: Setting) -> list[Measurement]:
    """Measures lookup and update of workload A on the small table."""
    ours.use_threads(setting.threads)
    gradient = workload.output_gradient(setting.ids_per_batch, ours.DIM)
    table = ours.Ours(ours.new_table(), gradient)
    ours.fill(table.table, setting.small_rows)
    batches = workload.zipf_batches(setting, setting.small_rows)
    rounds: dict[int, list[list[float]]] = {CALLERS: [], 1: []}
    with quiet_collector():
        for _ in range(setting.rounds):
            for callers, rates in rounds.items():
                rates.append(_rates(table, batches, callers=callers, seconds=setting.seconds))
    together = [sum(each) for each in rounds[CALLERS]]
    alone = [sum(each) for each in rounds[1]]
    shares = [min(each) / statistics.mean(each) for each in rounds[CALLERS]]
    what = f"{CALLERS} Python threads that train on one table, A, {setting.small_rows:,} rows"
    return [
        Measurement(
            row="callers",
            measure=what,
            figure=statistics.median(together),
            unit="batches/s",
            peer="one Python thread",
            peer_figure=statistics.median(alone),
            ratio=median_ratio(together, alone),
            limit=LIMITS.get(setting.threads),
            note=f"{setting.threads} threads of the core; judged with {' or '.join(map(str, LIMITS))}",
        ),
        Measurement(
            row="callers",
            measure=f"{what}: the slowest of them against their mean",
            figure=statistics.median(shares),
            unit="x",
            limit=LEAST_SHARE,
            note="1 when all have the same",
        ),
    ]


def _rates(table: ours.Ours, batches: Batches, *, callers: int, seconds: float) -> list[float]:
    """Returns batches per second of each caller; all start together."""
    start = threading.Barrier(callers)
    rates = [0.0] * callers

    def call(number: int) -> None:
        first = number * len(batches) // callers
        own = batches[first:] + batches[:first]
        for step in range(WARM_UP_STEPS):
            table.train(own[step % len(own)])
        start.wait()
        steps, begun = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begun) < seconds or steps == 0:
            table.train(own[steps % len(own)])
            steps += 1
        rates[number] = steps / elapsed

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rates
