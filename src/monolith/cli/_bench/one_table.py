"""The rows `insert`, `memory`, `one_id` and `restore`: costs of one table, not compared with another library."""

from __future__ import annotations

import mmap
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith.cli._bench import machine, ours, runner, workload
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread, tell
from monolith.cli._bench.timing import quiet_collector, timed
from monolith.cli._bench.workload import SEED, mixed_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from monolith.cli._bench.setting import Setting
    from monolith.tables import HashTable

INSERT_LIMIT = 8.0
INSERT_RATIO = 1.5
"""Of the time of `apply_gradients`, which training inserts by, to that of the bare memory."""
FRESH = "fresh memory, cleared"
TRAINING = "apply_gradients"


def measure_insert(setting: Setting) -> list[Measurement]:
    """Inserts unseen ids into a table that grows from empty, by three calls, each row made by the initializer.

    The peer of `apply_gradients`, by which training inserts, is the cost of the memory itself: after every call, as
    many bytes as the table has just grown by are allocated from the system, on huge pages where it grants them as
    tables request, and cleared by as many threads. So both sides alternate within milliseconds. On a virtual machine
    that matters more than anything else: memory that a process has just freed is ten times as fast as memory that the
    host has to find, and memory that is cleared in one go after a complete table may be all of the first kind.
    """
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
    return [_insert_measurement(setting, name, figures) for name in calls]


def _insert_measurement(setting: Setting, name: str, figures: dict[str, list[float]]) -> Measurement:
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
        limit=INSERT_RATIO if trains else INSERT_LIMIT,
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


WEIGHTS_AND_STATE_BYTES = 4 * ours.DIM * 2
"""Adagrad: a weight and an accumulator per dimension, float32."""

MEMORY_LIMIT = 24.0


def measure_memory(setting: Setting) -> list[Measurement]:
    """Measures memory beyond weights and optimizer state, key and time stamp included, at several sizes.

    Every size has a fresh process; the averages over the sizes are judged.
    """
    points = []
    for num_rows in setting.memory_rows:
        tell(f"    {num_rows:,} rows")
        points.append(runner.call("monolith.cli._bench.one_table:occupy", setting, num_rows=num_rows))
    sizes = f"averaged over {setting.memory_rows[0]:,}..{setting.memory_rows[-1]:,} rows"
    return [
        *(
            Measurement(
                row="memory",
                measure=f"memory beyond weights and state, {num_rows:,} rows",
                figure=point["resident"],
                unit="bytes/id",
                note=f"by resident memory; by the table's own count {point['counted']:.1f}",
            )
            for num_rows, point in zip(setting.memory_rows, points, strict=True)
        ),
        _average_memory(f"memory by resident size, {sizes}", [point["resident"] for point in points]),
        _average_memory(f"memory by the table's own count, {sizes}", [point["counted"] for point in points]),
    ]


def occupy(setting: Setting, num_rows: int) -> dict[str, Any]:
    """Fills one table in this process: bytes per id beyond weights and state, by the system and by the table."""
    ours.use_threads(setting.threads)
    gradient = torch.zeros(setting.ids_per_batch, ours.DIM)
    ours.warm_up(setting.ids_per_batch)
    before = machine.resident_bytes()
    table = ours.new_table()
    for ids in ours.id_ranges(num_rows, setting.ids_per_batch):
        table.apply_gradients(ids, gradient[: len(ids)], time=ours.TIME)
    resident = (machine.resident_bytes() - before) / num_rows
    counted = ours.memory_bytes(table) / num_rows
    return {"resident": resident - WEIGHTS_AND_STATE_BYTES, "counted": counted - WEIGHTS_AND_STATE_BYTES}


def _average_memory(measure: str, bytes_per_id: list[float]) -> Measurement:
    return Measurement(
        row="memory",
        measure=measure,
        figure=statistics.fmean(bytes_per_id),
        unit="bytes/id",
        limit=MEMORY_LIMIT,
        sense=Sense.AT_MOST,
    )


ONE_ID_LIMITS_US = {"NumPy in and out": 10.0, "torch in and out": 30.0}
NUM_ARRAYS = 1000
"""Different ids, so that the row is not always the same hot one."""


def measure_one_id(setting: Setting) -> list[Measurement]:
    """Looks up single ids from Python, by NumPy arrays and torch tensors of shape [1] that exist beforehand."""
    ours.use_threads(setting.threads)
    table = ours.new_table()
    ours.fill(table, setting.small_rows)
    rows = np.random.default_rng(SEED).integers(0, setting.small_rows, NUM_ARRAYS)
    arrays = [np.array([id_]) for id_ in mixed_ids(rows)]
    inputs: dict[str, Sequence[Any]] = {
        "NumPy in and out": arrays,
        "torch in and out": [torch.from_numpy(array) for array in arrays],
    }
    figures: dict[str, list[float]] = {name: [] for name in inputs}
    with quiet_collector():
        for _ in range(setting.rounds):
            for name, batch in inputs.items():
                figures[name].append(_microseconds(table, batch, setting.seconds))
    return [
        Measurement(
            row="one_id",
            measure=f"lookup of one id, {name}",
            figure=statistics.median(figures[name]),
            unit="us",
            limit=limit,
            sense=Sense.AT_MOST,
            note=spread(figures[name]),
        )
        for name, limit in ONE_ID_LIMITS_US.items()
    ]


def _microseconds(table: Any, inputs: Sequence[Any], seconds: float) -> float:
    lookup = table.lookup
    for ids in inputs:
        lookup(ids)
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or calls == 0:
        for ids in inputs:
            lookup(ids)
        calls += len(inputs)
    return elapsed / calls * 1e6


READ_LIMIT = 0.7
ENOUGH_ROWS_PER_SECOND = 7.0
"""Millions; on a disk that reads faster than this, the processor is the limit and this is enough."""


def measure_restore(setting: Setting) -> list[Measurement]:
    """Restores files that are not in the page cache into an empty table, against a plain cold read of them."""
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


def _save_a_table(setting: Setting, target: Path, probe: workload.WorkloadBatch) -> torch.Tensor:
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


def _restore_seconds(setting: Setting, target: Path, probe: workload.WorkloadBatch, expected: torch.Tensor) -> float:
    table = ours.new_table()
    machine.forget_pages(machine.files_under(target))
    seconds = timed(table.restore, target)
    if len(table) != setting.large_rows or not torch.equal(table.lookup(probe.ids), expected):
        raise AssertionError(f"restored {len(table)} rows of {setting.large_rows}, or not the rows that were saved")
    return seconds
