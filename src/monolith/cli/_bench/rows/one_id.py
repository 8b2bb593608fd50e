"""Lookup of a single id from Python: what a call costs when there is hardly any work in it."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith.cli._bench import ours
from monolith.cli._bench.measurement import Measurement, Sense, spread
from monolith.cli._bench.timing import quiet_collector
from monolith.cli._bench.workload import SEED, mixed_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.cli._bench.setting import Setting

LIMITS_US = {"NumPy in and out": 10.0, "torch in and out": 30.0}
NUM_ARRAYS = 1000
"""Different ids, so that the row is not always the same hot one."""


def measure(setting: Setting) -> list[Measurement]:
    """NumPy arrays and torch tensors of shape [1], made beforehand."""
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
            for name, each in inputs.items():
                figures[name].append(_microseconds(table, each, setting.seconds))
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
        for name, limit in LIMITS_US.items()
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
