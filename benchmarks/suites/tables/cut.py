"""Pause of training when a cut is taken, and the cost of the first steps after it."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.suites.tables.training_thread import TrainingThread, median_step
from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, Sense, spread
from monolith.cli._bench.timing import quiet_collector

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

LIMIT_MS = 10.0
CUTS_PER_ROUND = 4
STEPS_AFTER = 2
"""Number of steps after the flip that are measured in addition to those that overlap it."""


class Moment(NamedTuple):
    """One cut, on the clock of `time.perf_counter`."""

    begin: float
    end: float
    released: float
    rested: float


def measure(setting: Setting) -> list[Measurement]:
    """Excess over the median step, of the slowest step that overlaps the cut or follows it."""
    ours.use_threads(setting.threads)
    table = ours.Ours(ours.new_table(), workload.output_gradient(setting.ids_per_batch, ours.DIM))
    ours.fill(table.table, setting.large_rows)
    batches = workload.zipf_batches(setting, setting.large_rows)
    # This thread sleeps or cuts and computes nothing meanwhile: Python lets one thread compute at a time, and waiting
    # for it would count as a stall.
    with quiet_collector(), TrainingThread(table.train, batches) as training:
        time.sleep(setting.seconds)
        moments = [_cut_once(table, setting.seconds / 4) for _ in range(setting.rounds * CUTS_PER_ROUND)]
    medians = [median_step(training.steps_touching(each.released, each.rested)) for each in moments]
    stalls = [1e3 * max(0.0, _slowest(training, each) - median) for each, median in zip(moments, medians, strict=True)]
    calls = [1e3 * (each.end - each.begin) for each in moments]
    name = f"the cut, {setting.large_rows:,} rows under training"
    return [
        Measurement(
            row="cut",
            measure=f"{name}: stall, worst of {len(stalls)}",
            figure=max(stalls),
            unit="ms",
            limit=LIMIT_MS,
            sense=Sense.AT_MOST,
            note=f"excess over the median step of {1e3 * statistics.median(medians):.2f} ms; stalls {spread(stalls)}",
        ),
        Measurement(
            row="cut",
            measure=f"{name}: the call itself",
            figure=statistics.median(calls),
            unit="ms",
            note=f"waits for the step in flight; {spread(calls)}",
        ),
    ]


def _cut_once(table: ours.Ours, pause: float) -> Moment:
    """Takes a cut, holds it for a while during training, releases it, and trains on for comparison."""
    begin = time.perf_counter()
    cut = table.table.cut()
    end = time.perf_counter()
    time.sleep(pause)
    cut.release()
    released = time.perf_counter()
    time.sleep(pause)
    return Moment(begin, end, released, time.perf_counter())


def _slowest(training: TrainingThread, moment: Moment) -> float:
    """Seconds of the slowest step at the cut: those that overlap the call, and the first ones after it."""
    at_cut = training.steps_touching(moment.begin, moment.end)
    after = training.steps_between(moment.end, moment.rested)[:STEPS_AFTER]
    return max(step.seconds for step in at_cut + after)
