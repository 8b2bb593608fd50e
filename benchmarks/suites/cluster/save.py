"""How long a step of a worker stands still at a save of a job, its barrier included."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.suites.cluster.jobs import running_job
from monolith.cli._bench import machine
from monolith.cli._bench.measurement import Measurement, Sense, spread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.suites.cluster.jobs import Job
    from monolith.cli._bench.setting import Setting

WORKERS, SERVERS = 4, 2
SAVE_SECONDS = 5
LIMIT_MS = 150.0

Span = tuple[float, float]


def measure(setting: Setting) -> list[Measurement]:
    """Excess over the median step, of the slowest step that overlaps a save."""
    with (
        machine.scratch_folder(setting.directory, needed_bytes=setting.small_rows * 1000) as folder,
        running_job(
            setting,
            folder / "job",
            num_ps=SERVERS,
            num_workers=WORKERS,
            intra_op_parallelism_threads=1,
            save_checkpoints_secs=SAVE_SECONDS,
        ) as job,
    ):
        job.wait_for_steps(setting.num_batches)  # every id has its row
        saves = [_next_save(job) for _ in range(max(2, setting.rounds))]
        job.wait_for_steps(1 + max(len(job.times(worker)) for worker in range(WORKERS)))
        begins = [job.times(worker) for worker in range(WORKERS)]
    stalls = [_stall(begins, save) for save in saves]
    without = [_stall(begins, (2 * begin - end, begin)) for begin, end in saves]
    return [
        Measurement(
            row="job_save",
            measure=f"a save under {WORKERS} workers: longest pause of a worker, worst of {len(stalls)}",
            figure=max(stalls),
            unit="ms",
            limit=LIMIT_MS,
            sense=Sense.AT_MOST,
            note=f"excess over the median step; median of the saves {statistics.median(stalls):.0f},"
            f" {spread(stalls)}; of spans as long without a save: median {statistics.median(without):.0f},"
            f" {spread(without)}",
        )
    ]


def _next_save(job: Job) -> Span:
    job.wait(lambda: not _is_saving(job.model_dir))
    begin = job.wait(lambda: _is_saving(job.model_dir))
    end = job.wait(lambda: not _is_saving(job.model_dir))
    time.sleep(0.5)
    return begin - 0.2, end  # the barrier is set before the first file exists


def _is_saving(model_dir: Path) -> bool:
    return model_dir.is_dir() and any(path.name.endswith(".saving") for path in model_dir.iterdir())


def _stall(workers: Sequence[Sequence[float]], span: Span) -> float:
    """Milliseconds by which the slowest step that overlaps a span exceeds the median step of its worker."""
    worst = 0.0
    for begins in workers:
        steps = list(itertools.pairwise(begins))
        usual = statistics.median(end - begin for begin, end in steps)
        touching = [end - begin for begin, end in steps if begin <= span[1] and end >= span[0]]
        worst = max(worst, *(seconds - usual for seconds in touching), 0.0)
    return 1e3 * worst
