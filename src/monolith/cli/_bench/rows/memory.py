"""Memory of a table beyond its weights and optimizer state, key and time stamp included, at several sizes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import torch

from monolith.cli._bench import isolation, machine, ours
from monolith.cli._bench.measurement import Measurement, Sense, tell

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

WEIGHTS_AND_STATE_BYTES = 4 * ours.DIM * 2
"""Adagrad: a weight and an accumulator per dimension, float32."""

LIMIT = 24.0


def measure(setting: Setting) -> list[Measurement]:
    """Measures every size in a fresh process; the averages over the sizes are judged."""
    points = []
    for num_rows in setting.memory_rows:
        tell(f"    {num_rows:,} rows")
        points.append(isolation.call("monolith.cli._bench.rows.memory:occupy", setting, num_rows=num_rows))
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
        _average(f"memory by resident size, {sizes}", [point["resident"] for point in points]),
        _average(f"memory by the table's own count, {sizes}", [point["counted"] for point in points]),
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


def _average(measure: str, bytes_per_id: list[float]) -> Measurement:
    return Measurement(
        row="memory",
        measure=measure,
        figure=statistics.fmean(bytes_per_id),
        unit="bytes/id",
        limit=LIMIT,
        sense=Sense.AT_MOST,
    )
