"""Table steps per second while the server writes its recovery record, against a server that writes none."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from monolith.cli._bench import disk, ours, workload
from monolith.cli._bench.measurement import Measurement, median_ratio, spread
from monolith.cli._bench.processor_time import on_cores
from monolith.cli._bench.progress import tell
from monolith.cli._bench.ps_servers import running_servers
from monolith.cli._bench.table_steps import TableSteps, configs, fill, gradient_of
from monolith.cli._bench.timing import Contestant, take_turns

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

CORES = 2
LEAST = 0.93
TURN_SECONDS = 10.0
"""A turn has at least two increments, twice as many as the default has."""


def measure(setting: Setting) -> list[Measurement]:
    """One worker and one server on two cores, reading ahead; both servers have the same rows."""
    ours.use_threads(CORES)
    num_rows = setting.small_rows
    seconds = TURN_SECONDS if setting.seconds >= 1 else setting.seconds
    batches, gradient = workload.zipf_batches(setting, num_rows), gradient_of(setting)
    with (
        disk.scratch_folder(setting.directory, needed_bytes=num_rows * 1000) as folder,
        on_cores(CORES),
        running_servers(1, threads=CORES) as plain,
        running_servers(1, threads=CORES, options=_recording(str(folder), seconds / 2)) as recorded,
        plain.open_store(configs()) as plain_store,
        recorded.open_store(configs()) as recorded_store,
    ):
        steps = {}
        for name, store in {"without": plain_store, "with": recorded_store}.items():
            tell(f"    filling {num_rows:,} rows, server {name} a record")
            fill(store, num_rows)
            steps[name] = TableSteps(store, 0, gradient)
        contestants = {name: Contestant(made.train_ahead, batches) for name, made in steps.items()}
        rates = take_turns(contestants, rounds=setting.rounds, seconds=seconds)
        for made in steps.values():
            made.settle()
        written = disk.bytes_of(disk.files_under(folder))
    return [
        Measurement(
            row="job_record",
            measure=f"plan + read + apply of a worker and a server on {CORES} cores, beside the recovery record",
            figure=statistics.median(rates["with"]),
            unit="steps/s",
            peer="without it",
            peer_figure=statistics.median(rates["without"]),
            ratio=median_ratio(rates["with"], rates["without"]),
            limit=LEAST,
            note=f"an increment every {seconds / 2:g} s, {written / 1e6:.0f} MB at the end; with"
            f" {spread(rates['with'])}, without {spread(rates['without'])}",
        )
    ]


def _recording(folder: str, interval_seconds: float) -> list[str]:
    return ["--recovery_dir", folder, "--recovery_interval_seconds", str(interval_seconds)]
