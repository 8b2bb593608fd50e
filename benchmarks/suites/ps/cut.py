"""How long a step of a worker stands still when a cut is made on the servers."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.suites.ps.servers import running_servers
from benchmarks.suites.ps.worker import running_workers
from benchmarks.suites.table_steps import configs, fill
from monolith.cli._bench.measurement import Measurement, Sense, spread, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.suites.ps.worker import Turn
    from monolith.cli._bench.setting import Setting
    from monolith.tables import Store

WORKERS, SERVERS = 4, 2
CUTS = 5
"""In a turn."""
LIMIT_MS = 50.0

Span = tuple[float, float]


def measure(setting: Setting) -> list[Measurement]:
    """Excess over the median step, of the slowest step that overlaps a cut."""
    num_rows = setting.small_rows
    stalls, calls, without = list[float](), list[float](), list[float]()
    with (
        running_servers(SERVERS, threads=1) as servers,
        servers.open_store(configs()) as store,
    ):
        tell(f"    filling {num_rows:,} rows on {SERVERS} servers")
        fill(store, num_rows)
        with running_workers(servers, WORKERS, setting, num_rows=num_rows, threads=1) as workers:
            for _ in range(setting.rounds):
                workers.begin_turn((CUTS + 1) * setting.seconds)
                cuts = [_cut_once(store, setting.seconds) for _ in range(CUTS)]
                turns = workers.end_turn()
                calls += [1e3 * (end - begin) for begin, end in cuts]
                stalls += [_stall(turns, cut) for cut in cuts]
                # A span as long, just before each cut: what the machine's own noise makes of a step.
                without += [_stall(turns, (2 * begin - end, begin)) for begin, end in cuts]
    name = f"the cut of {SERVERS} servers, {num_rows:,} rows under {WORKERS} workers"
    return [
        Measurement(
            row="ps_cut",
            measure=f"{name}: longest stall of a step, worst of {len(stalls)}",
            figure=max(stalls),
            unit="ms",
            limit=LIMIT_MS,
            sense=Sense.AT_MOST,
            note=f"excess over the median step; median of the cuts {statistics.median(stalls):.1f}, {spread(stalls)};"
            f" of spans as long without a cut: median {statistics.median(without):.1f}, {spread(without)}",
        ),
        Measurement(
            row="ps_cut",
            measure=f"{name}: the call itself",
            figure=statistics.median(calls),
            unit="ms",
            note=spread(calls),
        ),
    ]


def _cut_once(store: Store, pause: float) -> Span:
    time.sleep(pause / 2)
    begin = time.monotonic()
    cut = store.cut()
    end = time.monotonic()
    time.sleep(pause / 2)
    cut.release()
    return begin, end


def _stall(turns: Sequence[Turn], cut: Span) -> float:
    """Milliseconds by which the slowest step that overlaps a span exceeds the median step of its worker."""
    worst = 0.0
    for turn in turns:
        usual = statistics.median(end - begin for begin, end in turn.steps)
        touching = [end - begin for begin, end in turn.steps if begin <= cut[1] and end >= cut[0]]
        worst = max(worst, *(seconds - usual for seconds in touching), 0.0)
    return 1e3 * worst
