"""Training steps of two ranks of one thread, against one process of two threads on the same global batch."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.suites.processes import on_cores
from benchmarks.suites.sync.rank_processes import running_ranks
from monolith.cli._bench.measurement import Measurement, median_ratio, spread

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from benchmarks.suites.sync.rank_processes import Ranks
    from monolith.cli._bench.setting import Setting

CORES = 2
LEAST, LEAST_PIPELINED = 0.75, 0.85


def measure(setting: Setting) -> list[Measurement]:
    """Measures without pipelines, and with all four of them on; alternating, on the same two cores."""
    with ExitStack() as running:
        running.enter_context(on_cores(CORES))
        plain = running.enter_context(one_process(setting, pipelined=False))
        ahead = running.enter_context(one_process(setting, pipelined=True))
        ranks = running.enter_context(two_ranks(setting, pipelined=False))
        piped = running.enter_context(two_ranks(setting, pipelined=True))
        contestants: dict[str, Ranks] = {"plain": plain, "ahead": ahead, "ranks": ranks, "piped": piped}
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(setting.rounds):
            for name, each in contestants.items():
                rates[name].append(each.turn(setting.seconds).rate)
    words = f"training steps of {CORES} ranks of one thread"
    one = f"one process of {CORES} threads"
    return [
        _judge(words, rates["ranks"], one, rates["plain"], limit=LEAST),
        _judge(f"{words}, all pipelines on", rates["piped"], one, rates["plain"], limit=LEAST_PIPELINED),
        _judge(f"{words}, all pipelines on", rates["piped"], f"{one} that reads ahead and postpones", rates["ahead"]),
    ]


def one_process(setting: Setting, *, pipelined: bool) -> AbstractContextManager[Ranks]:
    """Runs the global batch in one process."""
    return running_ranks("training", setting, count=1, threads=CORES, pipelined=pipelined, num_shares=CORES)


def two_ranks(setting: Setting, *, pipelined: bool) -> AbstractContextManager[Ranks]:
    """Runs two ranks, each with its share of the batch."""
    return running_ranks("training", setting, count=CORES, threads=1, pipelined=pipelined, num_shares=1)


def _judge(
    measure: str, ours: list[float], peer: str, theirs: list[float], *, limit: float | None = None
) -> Measurement:
    return Measurement(
        row="sync_training",
        measure=measure,
        figure=statistics.median(ours),
        unit="steps/s",
        peer=peer,
        peer_figure=statistics.median(theirs),
        ratio=median_ratio(ours, theirs),
        limit=limit,
        note=f"the same global batch; ranks {spread(ours)}, one process {spread(theirs)}",
    )
