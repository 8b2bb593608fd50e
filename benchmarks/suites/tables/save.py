"""Saving a table: at full speed against a plain write, and in the background of training."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.suites.tables.training_thread import Step, TrainingThread, median_step, p99_step
from monolith.cli._bench import machine, ours, workload
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread, tell
from monolith.cli._bench.timing import quiet_collector, timed

if TYPE_CHECKING:
    from pathlib import Path

    from monolith.cli._bench.setting import Setting

WRITE_LIMIT = 0.7
TRAINING_LIMIT = 0.9
"""Minimum share of its speed that training keeps during a save."""
P99_LIMIT = 2.0
RATE_LIMIT = 100.0
"""MB/s that a background save must reach."""
ASKED_BYTES_PER_SECOND = 115_000_000
"""The limit given to it, a little higher so that the rate it keeps is above what is required."""
BACKGROUND_SAVES = 2
QUIET_TURNS = 4
"""Length of training alone before and after each background save, as a number of turns."""


class Beside(NamedTuple):
    """One background save and the training around it."""

    quiet: list[Step]
    saving: list[Step]
    megabytes_per_second: float


def write_plainly(file: Path, num_bytes: int) -> None:
    """Writes one sequential file of `num_bytes` random bytes, which is on disk when the call returns."""
    chunk = memoryview(np.random.default_rng(0).bytes(machine.CHUNK_BYTES))
    with file.open("wb", buffering=0) as out:
        left = num_bytes
        while left > 0:
            left -= out.write(chunk[:left])
        os.fsync(out.fileno())


def measure(setting: Setting) -> list[Measurement]:
    """Measures the large table, trained for a while before."""
    ours.use_threads(setting.threads)
    table = ours.Ours(ours.new_table(), workload.output_gradient(setting.ids_per_batch, ours.DIM))
    ours.fill(table.table, setting.large_rows)
    batches = workload.zipf_batches(setting, setting.large_rows)
    for batch in batches[:8]:
        table.train(batch)
    with machine.scratch_folder(setting.directory, needed_bytes=setting.large_rows * 500) as folder, quiet_collector():
        return [*_measure_blocking(setting, table, folder), *_measure_background(setting, table, batches, folder)]


def _measure_blocking(setting: Setting, table: ours.Ours, folder: Path) -> list[Measurement]:
    saved, written, num_bytes = [], [], 0
    for number in range(setting.rounds):
        tell(f"    blocking save {number + 1} of {setting.rounds}")
        target = folder / "saved"
        os.sync()
        save_seconds = timed(table.table.save, target)
        num_bytes = machine.bytes_of(machine.files_under(target))
        shutil.rmtree(target)
        os.sync()
        plain = folder / "plain"
        write_seconds = timed(write_plainly, plain, num_bytes)
        plain.unlink()
        saved.append(num_bytes / save_seconds / 1e6)
        written.append(num_bytes / write_seconds / 1e6)
    return [
        Measurement(
            row="save",
            measure=f"save, blocking, {setting.large_rows:,} rows",
            figure=statistics.median(saved),
            unit="MB/s",
            peer="plain write + fsync",
            peer_figure=statistics.median(written),
            ratio=median_ratio(saved, written),
            limit=WRITE_LIMIT,
            note=f"{num_bytes / 1e6:.0f} MB; save {spread(saved)}, write {spread(written)}",
        )
    ]


def _measure_background(
    setting: Setting, table: ours.Ours, batches: list[workload.WorkloadBatch], folder: Path
) -> list[Measurement]:
    with TrainingThread(table.train, batches) as training:
        time.sleep(setting.seconds)
        saves = [_save_beside(setting, table, training, folder / f"background{n}") for n in range(BACKGROUND_SAVES)]
    quiet = [len(each.quiet) / sum(step.seconds for step in each.quiet) for each in saves]
    saving = [len(each.saving) / sum(step.seconds for step in each.saving) for each in saves]
    steps = [step for each in saves for step in each.saving]
    rates = [each.megabytes_per_second for each in saves]
    name = f"background save, {setting.large_rows:,} rows"
    return [
        Measurement(
            row="save",
            measure=f"{name}: training during it",
            figure=statistics.median(saving),
            unit="steps/s",
            peer="training alone",
            peer_figure=statistics.median(quiet),
            ratio=median_ratio(saving, quiet),
            limit=TRAINING_LIMIT,
        ),
        Measurement(
            row="save",
            measure=f"{name}: p99 step during it",
            figure=p99_step(steps) * 1e3,
            unit="ms",
            peer="median step during it",
            peer_figure=median_step(steps) * 1e3,
            ratio=p99_step(steps) / median_step(steps),
            limit=P99_LIMIT,
            sense=Sense.AT_MOST,
            note=f"{len(steps)} steps; slowest {max(step.seconds for step in steps) * 1e3:.1f} ms",
        ),
        Measurement(
            row="save",
            measure=f"{name}: its rate",
            figure=min(rates),
            unit="MB/s",
            limit=RATE_LIMIT,
            note=f"requested {ASKED_BYTES_PER_SECOND / 1e6:.0f} MB/s; the slower of {len(rates)}",
        ),
    ]


def _save_beside(setting: Setting, table: ours.Ours, training: TrainingThread, target: Path) -> Beside:
    tell("    background save")
    before = time.perf_counter()
    time.sleep(QUIET_TURNS * setting.seconds)
    begin = time.perf_counter()
    table.table.save(target, background=True, rate_bytes_per_second=ASKED_BYTES_PER_SECOND).wait()
    end = time.perf_counter()
    num_bytes = machine.bytes_of(machine.files_under(target))
    shutil.rmtree(target)
    os.sync()
    resumed = time.perf_counter()
    time.sleep(QUIET_TURNS * setting.seconds)
    after = time.perf_counter()
    return Beside(
        quiet=training.steps_between(before, begin) + training.steps_between(resumed, after),
        saving=training.steps_between(begin, end) or training.steps_touching(begin, end),
        megabytes_per_second=num_bytes / (end - begin) / 1e6,
    )
