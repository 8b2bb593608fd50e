"""Insert of unseen ids into a table that grows from empty, each row made by the initializer.

The peer of `apply_gradients`, by which training inserts, is the cost of the memory itself: after every call, as many
bytes as the table has just grown by are allocated from the system, on huge pages where it grants them as tables
request, and cleared by as many threads. So both sides alternate within milliseconds. On a virtual machine that matters
more than anything else: memory that a process has just freed is ten times as fast as memory that the host has to find,
and memory that is cleared in one go after a complete table may be all of the first kind.
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
    from types import TracebackType
    from typing import Self

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
            seconds, seconds_of_memory = _insert_all(setting, insert, beside_memory=name == TRAINING)
            figures[name].append(setting.large_rows / seconds / 1e6)
            if name == TRAINING:
                figures[FRESH].append(setting.large_rows / seconds_of_memory / 1e6)
    return [_measurement(setting, name, figures) for name in calls]


def _measurement(setting: Setting, name: str, figures: dict[str, list[float]]) -> Measurement:
    trains = name == TRAINING
    beside = f"; memory {spread(figures[FRESH])}, cleared alternately with each call; time over time" if trains else ""
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
        note=f"initializer RandomUniform; {spread(figures[name])}{beside}",
    )


def _insert_all(
    setting: Setting, insert: Callable[[HashTable, torch.Tensor], object], *, beside_memory: bool
) -> tuple[float, float]:
    """Seconds of the calls, and of clearing as many fresh bytes as the table grew by; 0 unless `beside_memory`."""
    table, elapsed, elapsed_memory = ours.new_table(), 0.0, 0.0
    num_bytes = ours.memory_bytes(table)
    with FreshMemory(_most_bytes(setting, table)) as memory, quiet_collector():
        for ids in ours.id_ranges(setting.large_rows, setting.ids_per_batch):
            start = time.perf_counter()
            insert(table, ids)
            elapsed += time.perf_counter() - start
            if beside_memory:
                before, num_bytes = num_bytes, ours.memory_bytes(table)
                elapsed_memory += memory.seconds_to_clear(num_bytes - before)
    if len(table) != setting.large_rows:
        raise AssertionError(f"inserted {setting.large_rows} different ids, the table holds {len(table)}")
    return elapsed, elapsed_memory


def _most_bytes(setting: Setting, table: HashTable) -> int:
    """Returns an upper bound of the table's bytes; addresses that are never touched cost nothing."""
    return setting.large_rows * (ours.row_bytes(table) + 64) + (64 << 20)


class FreshMemory:
    """Anonymous memory that no one has touched, on huge pages where the system grants them."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._used = 0

    def seconds_to_clear(self, num_bytes: int) -> float:
        """For all threads of torch to fault in and clear the next bytes."""
        if num_bytes == 0:
            return 0.0
        piece = torch.frombuffer(self._memory, dtype=torch.uint8, count=num_bytes, offset=self._used)
        self._used += num_bytes
        start = time.perf_counter()
        piece.zero_()
        return time.perf_counter() - start

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._memory.close()
