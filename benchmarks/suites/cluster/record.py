"""Steps of a job whose servers write down what has changed, against one whose servers do not."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.suites.cluster.jobs import running_job
from benchmarks.suites.processes import on_cores
from benchmarks.suites.ps.training import CORES
from monolith.cli._bench import machine
from monolith.cli._bench.measurement import Measurement, median_ratio, spread

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

LIMIT = 0.93
TURN_INTERVALS = 1.0
"""Length of a turn in intervals; a paused server writes once more in each of its turns than one that runs on."""
INTERVAL_SECONDS = 10.0
"""Seconds between two increments, the default of a job."""


def measure(setting: Setting) -> list[Measurement]:
    """Measures alternately, on the same two cores; the idle contestant is paused."""
    interval = INTERVAL_SECONDS * min(1.0, setting.seconds)
    rates: dict[bool, list[float]] = {True: [], False: []}
    with ExitStack() as running:
        running.enter_context(on_cores(CORES))
        folder = running.enter_context(machine.scratch_folder(setting.directory, needed_bytes=setting.small_rows * 500))
        jobs = {}
        for is_recorded in rates:
            jobs[is_recorded] = running.enter_context(
                running_job(
                    setting,
                    folder / f"recorded-{is_recorded}",
                    num_ps=1,
                    num_workers=1,
                    intra_op_parallelism_threads=CORES,
                    partial_recovery=str(is_recorded).lower(),
                    recovery_interval_seconds=interval if is_recorded else 0,
                )
            )
            jobs[is_recorded].wait_for_steps(2 * setting.num_batches)  # every id has its row
            jobs[is_recorded].pause()
        for number in range(setting.rounds):
            for is_recorded in sorted(rates, reverse=number % 2 == 0):
                rates[is_recorded].append(jobs[is_recorded].turn(TURN_INTERVALS * interval))
    ours, peers = rates[True], rates[False]
    return [
        Measurement(
            row="job_record",
            measure=f"training steps of a DeepFM while the server writes its recovery record every {interval:g} s",
            figure=statistics.median(ours),
            unit="steps/s",
            peer="without a record",
            peer_figure=statistics.median(peers),
            ratio=median_ratio(ours, peers),
            limit=LIMIT,
            note=f"with {spread(ours)}, without {spread(peers)}; a worker and a server on {CORES} cores",
        )
    ]
