"""Insert of unseen ids into a table that grows from empty, each row made by the initializer.

What the memory itself costs stands beside it: as many bytes, new from the system, cleared by as many threads. On a
virtual machine that is most of it, and changes from hour to hour.
"""

from __future__ import annotations

import mmap
import statistics
import time
from typing import TYPE_CHECKING

import torch

from monolith.cli._bench import ours
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread
from monolith.cli._bench.timing import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cli._bench.setting import Setting
    from monolith.tables import HashTable

LIMIT = 8.0
MAX_RATIO = 1.5
"""Of the time of `apply_gradients`, which training inserts by, to that of the bare memory."""
FRESH = "fresh memory, cleared"
TRAINING = "apply_gradients"


def measure(setting: Setting) -> list[Measurement]:
    """By the call that training uses, by the one that adds, and by the one that does nothing else."""
    ours.use_threads(setting.threads)
    values = torch.zeros(setting.ids_per_batch, ours.DIM)
    calls: dict[str, Callable[[HashTable, torch.Tensor], object]] = {
        TRAINING: lambda table, ids: table.apply_gradients(ids, values[: len(ids)], time=ours.TIME),
        "assign_add": lambda table, ids: table.assign_add(ids, values[: len(ids)], time=ours.TIME),
        "reinitialize": lambda table, ids: table.reinitialize(ids, time=ours.TIME),
    }
    figures: dict[str, list[float]] = {name: [] for name in (*calls, FRESH)}
    for _ in range(setting.rounds):
        for name, insert in calls.items():
            seconds, num_bytes = _insert_all(setting, insert)
            figures[name].append(setting.large_rows / seconds / 1e6)
            if name == TRAINING:
                figures[FRESH].append(setting.large_rows / _seconds_of_fresh(num_bytes) / 1e6)
    return [_measurement(setting, name, figures) for name in calls]


def _measurement(setting: Setting, name: str, figures: dict[str, list[float]]) -> Measurement:
    trains = name == TRAINING
    return Measurement(
        row="insert",
        measure=f"insert of {setting.large_rows:,} unseen ids by {name}, from empty",
        figure=statistics.median(figures[name]),
        unit="M rows/s",
        peer=FRESH if trains else "",
        peer_figure=statistics.median(figures[FRESH]) if trains else None,
        ratio=median_ratio(figures[FRESH], figures[name]) if trains else None,
        limit=MAX_RATIO if trains else LIMIT,
        sense=Sense.AT_MOST if trains else Sense.AT_LEAST,
        note=f"initializer RandomUniform; {spread(figures[name])}" + ("; time over time" if trains else ""),
    )


def _insert_all(setting: Setting, insert: Callable[[HashTable, torch.Tensor], object]) -> tuple[float, int]:
    """Seconds, and the bytes of the table then."""
    table, elapsed = ours.new_table(), 0.0
    with quiet_collector():
        for ids in ours.id_ranges(setting.large_rows, setting.ids_per_batch):
            start = time.perf_counter()
            insert(table, ids)
            elapsed += time.perf_counter() - start
    if len(table) != setting.large_rows:
        raise AssertionError(f"inserted {setting.large_rows} different ids, the table holds {len(table)}")
    return elapsed, ours.memory_bytes(table)


def _seconds_of_fresh(num_bytes: int) -> float:
    """For as many bytes from the system, on huge pages where it grants them, cleared by all threads of torch."""
    with mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        start = time.perf_counter()
        torch.frombuffer(memory, dtype=torch.uint8).zero_()
        return time.perf_counter() - start
