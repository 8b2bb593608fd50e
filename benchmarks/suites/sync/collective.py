"""What `collective.alltoall` adds to torch's bare exchange of the same rows."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.suites.sync.rank_processes import running_ranks
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread

if TYPE_CHECKING:
    from benchmarks.suites.sync.rank_processes import RankTurn
    from monolith.cli._bench.setting import Setting

MOST = 1.1


def measure(setting: Setting) -> list[Measurement]:
    """Measures the time of the call and the CPU time of a rank, alternating in the same two ranks."""
    turns: dict[str, list[RankTurn]] = {"bare": [], "collective": [], "rows alone": []}
    with running_ranks("exchange", setting, num_rows=setting.small_rows) as ranks:
        for _ in range(setting.rounds):
            for way, found in turns.items():
                found.append(ranks.turn(setting.seconds, way))
    seconds = {way: [1e3 / each.rate for each in found] for way, found in turns.items()}
    cpu = {way: [each.cpu_ms for each in found] for way, found in turns.items()}
    return [
        _judge("an exchange of the rows of a batch between two ranks", seconds, limit=MOST),
        _judge("the same, processor time of a rank", cpu, limit=None),
    ]


def _judge(measure: str, found: dict[str, list[float]], *, limit: float | None) -> Measurement:
    return Measurement(
        row="sync_collective",
        measure=measure,
        figure=statistics.median(found["collective"]),
        unit="ms",
        peer="bare all_to_all_single of sizes and rows",
        peer_figure=statistics.median(found["bare"]),
        ratio=median_ratio(found["collective"], found["bare"]),
        limit=limit,
        sense=Sense.AT_MOST,
        note=f"ours also compares the calls of the ranks; ours {spread(found['collective'])}, bare"
        f" {spread(found['bare'])}; of the rows alone, into an existing buffer, {spread(found['rows alone'])}",
    )
