"""Processor time of a rank's exchanges, and of all that a rank adds, against the table step of a store in process."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.suites.sync.rank_processes import running_ranks
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

MOST_ADDED = 0.5
RANKS = 2


def measure(setting: Setting) -> list[Measurement]:
    """Measures two ranks and one process, alternating, one thread each; a batch has about 40,000 distinct ids."""
    num_rows = setting.small_rows
    here, there, exchanges = list[float](), list[float](), list[float]()
    with (
        running_ranks("tables", setting, count=1, num_rows=num_rows) as alone,
        running_ranks("tables", setting, count=RANKS, num_rows=num_rows) as ranks,
    ):
        for _ in range(setting.rounds):
            here.append(alone.turn(setting.seconds).cpu_ms)
            there.append(ranks.turn(setting.seconds).cpu_ms)
            exchanges.append(ranks.turn(setting.seconds, "exchanges").cpu_ms)
    added = [rank - local for rank, local in zip(there, here, strict=True)]
    in_process = f"in process {spread(here)} ms"
    return [
        _measurement(
            "processor time of the four exchanges of a rank",
            exchanges,
            here,
            limit=MOST_ADDED,
            note=f"sizes, ids, rows and gradients over Gloo; {spread(exchanges)} ms, {in_process}",
        ),
        _measurement(
            f"all that a rank of {RANKS} adds to plan + read + apply",
            added,
            here,
            limit=None,
            note=f"the merging of two plans and the agreement of the ranks included; a rank {spread(there)} ms,"
            f" {in_process}",
        ),
    ]


def _measurement(
    measure: str, figures: list[float], here: list[float], *, limit: float | None, note: str
) -> Measurement:
    return Measurement(
        row="sync_exchange",
        measure=measure,
        figure=statistics.median(figures),
        unit="ms",
        peer="plan + read + apply in process",
        peer_figure=statistics.median(here),
        ratio=median_ratio(figures, here),
        limit=limit,
        sense=Sense.AT_MOST,
        note=note,
    )
