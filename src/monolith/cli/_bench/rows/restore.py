"""Restoring a table from files that are not in the page cache, against a plain cold read of them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch

from monolith.cli._bench import machine, ours, workload
from monolith.cli._bench.measurement import Measurement, median_ratio, spread, tell
from monolith.cli._bench.timing import quiet_collector, timed

if TYPE_CHECKING:
    from pathlib import Path

    from monolith.cli._bench.setting import Setting

READ_LIMIT = 0.7
ENOUGH_ROWS_PER_SECOND = 7.0
"""Millions; on a disk that reads faster than this, the processor is the limit and this is enough."""


def measure(setting: Setting) -> list[Measurement]:
    """Into an empty table, all threads."""
    ours.use_threads(setting.threads)
    probe = workload.zipf_batches(setting, setting.large_rows)[0]
    with machine.scratch_folder(setting.directory, needed_bytes=setting.large_rows * 250) as folder, quiet_collector():
        target = folder / "saved"
        expected = _save_a_table(setting, target, probe)
        restored, read = [], []
        for number in range(setting.rounds):
            tell(f"    restore {number + 1} of {setting.rounds}")
            read.append(setting.large_rows / _cold_read_seconds(target) / 1e6)
            restored.append(setting.large_rows / _restore_seconds(setting, target, probe, expected) / 1e6)
        num_bytes = machine.bytes_of(machine.files_under(target))
    cold = statistics.median(read)
    return [
        Measurement(
            row="restore",
            measure=f"restore, {setting.large_rows:,} rows",
            figure=statistics.median(restored),
            unit="M rows/s",
            peer="cold read of the files",
            peer_figure=cold,
            ratio=median_ratio(restored, read),
            limit=min(READ_LIMIT, ENOUGH_ROWS_PER_SECOND / cold),
            note=f"70 % or 7 M rows/s, whichever is slower; {num_bytes / 1e6:.0f} MB, cold read "
            f"{num_bytes / setting.large_rows * cold:.0f} MB/s; restore {spread(restored)}",
        )
    ]


def _save_a_table(setting: Setting, target: Path, probe: workload.Batch) -> torch.Tensor:
    """Saves a trained table and returns some of its rows, to compare with."""
    table = ours.Ours(ours.new_table(), workload.output_gradient(setting.ids_per_batch, ours.DIM))
    ours.fill(table.table, setting.large_rows)
    table.train(probe)
    table.table.save(target)
    return table.lookup(probe)


def _cold_read_seconds(target: Path) -> float:
    files = machine.files_under(target)
    machine.forget_pages(files)
    return timed(machine.read_plainly, files)


def _restore_seconds(setting: Setting, target: Path, probe: workload.Batch, expected: torch.Tensor) -> float:
    table = ours.new_table()
    machine.forget_pages(machine.files_under(target))
    seconds = timed(table.restore, target)
    if len(table) != setting.large_rows or not torch.equal(table.lookup(probe.ids), expected):
        raise AssertionError(f"restored {len(table)} rows of {setting.large_rows}, or not the rows that were saved")
    return seconds
