"""From the death of a worker to the first step under its number."""

from __future__ import annotations

import os
import signal
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.suites.cluster.jobs import import_seconds, running_job
from monolith.cli._bench import machine
from monolith.cli._bench.measurement import Measurement, Sense, spread

if TYPE_CHECKING:
    from benchmarks.suites.cluster.jobs import Job
    from monolith.cli._bench.setting import Setting

ALLOWED_SECONDS, IMPORTS = 3.0, 2.0
LOST = 1


def measure(setting: Setting) -> list[Measurement]:
    """Of two workers one is killed, the other one trains on."""
    importing = statistics.median(import_seconds() for _ in range(min(3, setting.rounds)))
    with (
        machine.scratch_folder(setting.directory, needed_bytes=100_000_000) as folder,
        running_job(setting, folder / "job", num_ps=1, num_workers=2, intra_op_parallelism_threads=1) as job,
    ):
        job.wait_for_steps(3)
        seconds = [_kill(job) for _ in range(min(3, setting.rounds))]
    return [
        Measurement(
            row="job_worker_loss",
            measure="SIGKILL of a worker, to its first step under its number",
            figure=max(seconds),
            unit="s",
            limit=ALLOWED_SECONDS + IMPORTS * importing,
            sense=Sense.AT_MOST,
            note=f"{ALLOWED_SECONDS:g} s and twice the {importing:.1f} s of processor time of an import;"
            f" {spread(seconds)}",
        )
    ]


def _kill(job: Job) -> float:
    before = len(job.times(LOST))
    os.kill(job.pid("worker", LOST), signal.SIGKILL)
    killed = time.monotonic()
    return job.wait(lambda: len(job.times(LOST)) > before + 1) - killed
