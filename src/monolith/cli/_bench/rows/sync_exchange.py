"""Processor time that a rank's exchanges add to its table step, against the step of a store in process."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread
from monolith.cli._bench.rank_processes import running_ranks

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

MOST_ADDED = 0.5
RANKS = 2


def measure(setting: Setting) -> list[Measurement]:
    """Two ranks in turns with one process, one thread each; the distinct ids of a batch are about 40,000."""
    num_rows = setting.small_rows
    here, there = list[float](), list[float]()
    with (
        running_ranks("tables", setting, count=1, num_rows=num_rows) as alone,
        running_ranks("tables", setting, count=RANKS, num_rows=num_rows) as ranks,
    ):
        for _ in range(setting.rounds):
            here.append(alone.turn(setting.seconds).cpu_ms)
            there.append(ranks.turn(setting.seconds).cpu_ms)
    added = [rank - local for rank, local in zip(there, here, strict=True)]
    return [
        Measurement(
            row="sync_exchange",
            measure=f"processor time that exchanges with {RANKS - 1} other rank add to plan + read + apply",
            figure=statistics.median(added),
            unit="ms",
            peer="plan + read + apply in process",
            peer_figure=statistics.median(here),
            ratio=median_ratio(added, here),
            limit=MOST_ADDED,
            sense=Sense.AT_MOST,
            note=f"sizes, ids, rows and gradients over Gloo, the merging of two plans included; a rank {spread(there)}"
            f" ms, in process {spread(here)} ms",
        )
    ]
