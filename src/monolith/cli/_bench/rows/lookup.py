"""Lookup alone on workload A: ours maps ids, torch's static `EmbeddingBag` is given row numbers."""

from __future__ import annotations

import platform
import statistics
from typing import TYPE_CHECKING

import torch

from monolith.cli._bench import ours, peers, workload
from monolith.cli._bench.measurement import Measurement, median_ratio, spread
from monolith.cli._bench.progress import tell
from monolith.cli._bench.timing import Contestant, take_turns

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

LIMITS = {"torch EmbeddingBag": 2.0 if platform.machine() == "aarch64" else 1.25, "FBGEMM": None}
"""What each peer must be exceeded by. torch's lookup is written for x86-64 by hand, and several times as fast there;
FBGEMM's is slower than torch's and shown as information."""


def measure(setting: Setting) -> list[Measurement]:
    """Both table sizes."""
    ours.use_threads(setting.threads)
    return [
        measurement
        for num_rows in (setting.small_rows, setting.large_rows)
        for measurement in _measure_size(setting, num_rows)
    ]


def _measure_size(setting: Setting, num_rows: int) -> list[Measurement]:
    tell(f"    {num_rows:,} rows")
    batches = workload.zipf_batches(setting, num_rows)
    weights = torch.empty(num_rows, ours.DIM).uniform_(-0.05, 0.05)
    gradient = workload.output_gradient(setting.ids_per_batch, ours.DIM)
    table = ours.Ours(ours.new_table(), gradient)
    ours.fill_with(table.table, weights)
    bag = peers.TorchBag(weights, gradient)
    if not torch.equal(table.lookup(batches[0]), bag.lookup(batches[0])):
        raise AssertionError("ours and torch read different rows: they do not do the same work")
    steps = {"ours": table.lookup, "torch EmbeddingBag": bag.lookup}
    if peers.find_fbgemm() is not None:
        steps["FBGEMM"] = peers.FbgemmBag(weights, gradient, features=setting.features).lookup
    contestants = {name: Contestant(step, batches) for name, step in steps.items()}
    rates = take_turns(contestants, rounds=setting.rounds, seconds=setting.seconds)
    figures = {name: [rate * setting.examples / 1e3 for rate in each] for name, each in rates.items()}
    return [
        Measurement(
            row="lookup",
            measure=f"lookup, A, {num_rows:,} rows",
            figure=statistics.median(figures["ours"]),
            unit="k examples/s",
            peer=peer,
            peer_figure=statistics.median(figures[peer]),
            ratio=median_ratio(figures["ours"], figures[peer]),
            limit=limit,
            note=f"ours {spread(figures['ours'])}",
        )
        for peer, limit in LIMITS.items()
        if peer in figures
    ]
