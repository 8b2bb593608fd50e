"""From the start of a job to its first step, with an empty model."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING

from benchmarks.suites.cluster.jobs import import_seconds, running_job
from monolith.cli._bench import machine
from monolith.cli._bench.measurement import Measurement, Sense, spread

if TYPE_CHECKING:
    from pathlib import Path

    from monolith.cli._bench.setting import Setting

ALLOWED_SECONDS = 3.0
SERVERS = WORKERS = 2


def measure(setting: Setting) -> list[Measurement]:
    """Of the command that starts all processes."""
    importing = statistics.median(import_seconds() for _ in range(min(3, setting.rounds)))
    processes, cores = 1 + SERVERS + WORKERS, len(os.sched_getaffinity(0))
    with machine.scratch_folder(setting.directory, needed_bytes=100_000_000) as folder:
        seconds = [_start(setting, folder / str(number)) for number in range(min(3, setting.rounds))]
    return [
        Measurement(
            row="job_start",
            measure=f"start of {SERVERS} servers and {WORKERS} workers to the first step",
            figure=statistics.median(seconds),
            unit="s",
            limit=ALLOWED_SECONDS + processes * importing / cores,
            sense=Sense.AT_MOST,
            note=f"{ALLOWED_SECONDS:g} s and {processes} x {importing:.1f} s of imports on {cores} cores;"
            f" {spread(seconds)}",
        )
    ]


def _start(setting: Setting, folder: Path) -> float:
    with running_job(setting, folder, num_ps=SERVERS, num_workers=WORKERS, intra_op_parallelism_threads=1) as job:
        return job.wait(lambda: any(len(job.times(worker)) > 1 for worker in range(WORKERS))) - job.begun
