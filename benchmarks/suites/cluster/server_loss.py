"""From the death of a server that has many rows to the first update that it applies again."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.suites.cluster.jobs import running_job
from benchmarks.suites.cluster.task import JobDeepFm
from monolith.checkpoint import load
from monolith.cli._bench import machine
from monolith.cli._bench.measurement import Measurement, Sense, tell
from monolith.cli._bench.timing import timed

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.suites.cluster.jobs import Job
    from monolith.cli._bench.setting import Setting

RATIO, ALLOWED_SECONDS = 1.3, 3.0


def measure(setting: Setting) -> list[Measurement]:
    """Measures partial recovery, against a cold restore of the same checkpoint in one process."""
    num_steps = max(2, setting.large_rows // setting.features // setting.examples + 1)
    with machine.scratch_folder(setting.directory, needed_bytes=setting.large_rows * 400) as folder:
        with running_job(
            setting,
            folder / "job",
            num_ps=1,
            num_workers=1,
            new_ids=True,
            partial_recovery="true",
            save_checkpoints_steps=num_steps,
        ) as job:
            tell(f"    filling {setting.large_rows:,} rows")
            job.wait_for_steps(num_steps + 2)
            job.wait(lambda: any(path.name.endswith(".manifest") for path in job.model_dir.iterdir()))
            seconds = _kill(job)
        cold = _cold_restore_seconds(setting, folder / "job")
    return [
        Measurement(
            row="job_server_loss",
            measure=f"SIGKILL of a server with {setting.large_rows:,} rows, to its first applied push",
            figure=seconds,
            unit="s",
            limit=RATIO * cold + ALLOWED_SECONDS,
            sense=Sense.AT_MOST,
            note=f"{RATIO} x a cold restore of {cold:.1f} s, and {ALLOWED_SECONDS:g} s",
        )
    ]


def _kill(job: Job) -> float:
    os.kill(job.pid("ps", 0), signal.SIGKILL)
    killed = time.monotonic()
    # One step may have been computed already, and one read ahead; the step after them needs the server.
    job.wait(lambda: sum(begin > killed for begin in job.times(0)) > 3)
    after = [begin for begin in job.times(0) if begin > killed]
    gaps = [(later - before, later) for before, later in zip([killed, *after], after, strict=False)]
    return max(gaps)[1] - killed


def _cold_restore_seconds(setting: Setting, folder: Path) -> float:
    params = JobDeepFm.params()
    params.setting = setting.to_json()
    model = JobDeepFm(params).make_model()
    machine.forget_pages(machine.files_under(folder / "model"))
    return timed(load, model, folder / "model")
