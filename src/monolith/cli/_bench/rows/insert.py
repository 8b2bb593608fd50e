"""Insert of unseen ids into a table that grows from empty, each row made by the initializer."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import torch

from monolith.cli._bench import ours
from monolith.cli._bench.measurement import Measurement, spread
from monolith.cli._bench.timing import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cli._bench.setting import Setting
    from monolith.tables import HashTable

LIMIT = 8.0


def measure(setting: Setting) -> list[Measurement]:
    """By the call that training uses, by the one that adds, and by the one that does nothing else."""
    ours.use_threads(setting.threads)
    values = torch.zeros(setting.ids_per_batch, ours.DIM)
    calls: dict[str, Callable[[HashTable, torch.Tensor], object]] = {
        "apply_gradients": lambda table, ids: table.apply_gradients(ids, values[: len(ids)], time=ours.TIME),
        "assign_add": lambda table, ids: table.assign_add(ids, values[: len(ids)], time=ours.TIME),
        "reinitialize": lambda table, ids: table.reinitialize(ids, time=ours.TIME),
    }
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(setting.rounds):
        for name, insert in calls.items():
            figures[name].append(_rows_per_second(setting, insert) / 1e6)
    return [
        Measurement(
            row="insert",
            measure=f"insert of {setting.large_rows:,} unseen ids by {name}, from empty",
            figure=statistics.median(each),
            unit="M rows/s",
            limit=LIMIT,
            note=f"initializer RandomUniform; {spread(each)}",
        )
        for name, each in figures.items()
    ]


def _rows_per_second(setting: Setting, insert: Callable[[HashTable, torch.Tensor], object]) -> float:
    table, elapsed = ours.new_table(), 0.0
    with quiet_collector():
        for ids in ours.id_ranges(setting.large_rows, setting.ids_per_batch):
            start = time.perf_counter()
            insert(table, ids)
            elapsed += time.perf_counter() - start
    if len(table) != setting.large_rows:
        raise AssertionError(f"inserted {setting.large_rows} different ids, the table holds {len(table)}")
    return setting.large_rows / elapsed
