"""Training steps of two ranks, against two ranks of torchrec's row-wise sharded collection."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.suites.processes import on_cores
from benchmarks.suites.sync.rank_processes import running_ranks
from benchmarks.suites.sync.training import CORES, two_ranks
from monolith.cli._bench.measurement import Measurement, median_ratio, spread

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

LEAST = 1.5


def measure(setting: Setting) -> list[Measurement]:
    """Measures ours without and with pipelines; one thread per rank, over Gloo, alternating on the same two cores."""
    plain, piped, theirs = list[float](), list[float](), list[float]()
    with ExitStack() as running:
        running.enter_context(on_cores(CORES))
        peer = running.enter_context(running_ranks("torchrec_collection", setting, count=CORES))
        ranks = running.enter_context(two_ranks(setting, pipelined=False))
        ahead = running.enter_context(two_ranks(setting, pipelined=True))
        for _ in range(setting.rounds):
            theirs.append(peer.turn(setting.seconds).rate)
            plain.append(ranks.turn(setting.seconds).rate)
            piped.append(ahead.turn(setting.seconds).rate)
    return [_judge("", plain, theirs), _judge(", all pipelines on", piped, theirs)]


def _judge(how: str, ours: list[float], theirs: list[float]) -> Measurement:
    return Measurement(
        row="sync_torchrec",
        measure=f"training steps of {CORES} ranks of one thread{how}",
        figure=statistics.median(ours),
        unit="steps/s",
        peer="torchrec, row-wise",
        peer_figure=statistics.median(theirs),
        ratio=median_ratio(ours, theirs),
        limit=LEAST,
        note=f"the same tower; torchrec is given row numbers; ours {spread(ours)}, torchrec {spread(theirs)}",
    )
