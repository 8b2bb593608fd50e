"""The rows `training` and `lookup`: workload A, ours against FBGEMM, torch, and a dict in front of torch.

Ours maps ids; torch and FBGEMM are given row numbers.
"""

from __future__ import annotations

import platform
import statistics
from typing import TYPE_CHECKING

import torch

from monolith.cli._bench import ours, peers, workload
from monolith.cli._bench.measurement import Measurement, median_ratio, spread, tell
from monolith.cli._bench.timing import TimedStep, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cli._bench.setting import Setting
    from monolith.cli._bench.workload import WorkloadBatch

FBGEMM, TORCH, DICT = "FBGEMM fused", "torch sparse Adagrad", "dict + torch"
TRAINING_LIMITS = {FBGEMM: 4.0, TORCH: 5.0, DICT: 20.0}
LOOKUP_LIMITS = {"torch EmbeddingBag": 2.0 if platform.machine() == "aarch64" else 1.25, "FBGEMM": None}
"""What each peer must be exceeded by. torch's lookup is written for x86-64 by hand, and several times as fast there;
FBGEMM's is slower than torch's and shown as information."""
TOLERANCE = 1e-5
"""Largest difference of a weight after one step: sums of thousands of float32 gradients in another order."""


def measure_training(setting: Setting) -> list[Measurement]:
    """Lookup and update, on both table sizes."""
    return _both_sizes(setting, _training)


def measure_lookup(setting: Setting) -> list[Measurement]:
    """Lookup alone, on both table sizes."""
    return _both_sizes(setting, _lookup)


def _both_sizes(setting: Setting, measure: Callable[[Setting, int], list[Measurement]]) -> list[Measurement]:
    ours.use_threads(setting.threads)
    return [
        measurement
        for num_rows in (setting.small_rows, setting.large_rows)
        for measurement in measure(setting, num_rows)
    ]


def _training(setting: Setting, num_rows: int) -> list[Measurement]:
    tell(f"    {num_rows:,} rows")
    batches = workload.zipf_batches(setting, num_rows)
    contestants = _enter(setting, num_rows, batches)
    rates = take_turns(contestants, rounds=setting.rounds, seconds=setting.seconds)
    thousands = {name: [rate * setting.examples / 1e3 for rate in rounds] for name, rounds in rates.items()}
    measure = f"lookup + apply_gradients, A, {num_rows:,} rows"
    return [
        _compare("training", measure + suffix, thousands[form], peer, thousands.get(peer), limit)
        for form, suffix in (("calls", ""), ("planned", ", planned"))
        for peer, limit in TRAINING_LIMITS.items()
    ]


def _enter(setting: Setting, num_rows: int, batches: list[WorkloadBatch]) -> dict[str, TimedStep[WorkloadBatch]]:
    """Returns all contestants with the same weights, ids and gradient; raises if their rows differ after one step."""
    weights = torch.empty(num_rows, ours.DIM).uniform_(-0.05, 0.05)
    gradient = workload.output_gradient(setting.ids_per_batch, ours.DIM)
    table = ours.Ours(ours.new_table(), gradient)
    ours.fill_with(table.table, weights)
    bag = peers.TorchBag(weights, gradient)
    steps = {"calls": table.train, "planned": table.train_planned, TORCH: bag.train}
    table.train(batches[0])
    bag.train(batches[0])
    expected = bag.lookup(batches[0])
    _check_agreement(table.lookup(batches[0]), expected, "ours")
    if peers.find_fbgemm() is not None:
        fused = peers.FbgemmBag(weights, gradient, features=setting.features)
        fused.train(batches[0])
        _check_agreement(fused.flat(fused.lookup(batches[0])), expected, FBGEMM)
        steps[FBGEMM] = fused.train
    steps[DICT] = peers.DictBag(bag, num_rows).train
    return {name: TimedStep(step, batches) for name, step in steps.items()}


def _check_agreement(got: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    difference = float((got - expected).abs().max())
    if not difference <= TOLERANCE:
        raise AssertionError(
            f"{name} and torch differ by {difference} after one step from equal weights, expected at most {TOLERANCE}: "
            "they do not do the same work, so their times cannot be compared"
        )


def _compare(
    row: str, measure: str, figures: list[float], peer: str, peer_figures: list[float] | None, limit: float | None
) -> Measurement:
    missing = peer_figures is None
    return Measurement(
        row=row,
        measure=measure,
        figure=statistics.median(figures),
        unit="k examples/s",
        peer=peer,
        peer_figure=None if peer_figures is None else statistics.median(peer_figures),
        ratio=None if peer_figures is None else median_ratio(figures, peer_figures),
        limit=limit,
        note=f"peer is not installed: {peers.FBGEMM_INSTALL}" if missing else f"ours {spread(figures)}",
    )


def _lookup(setting: Setting, num_rows: int) -> list[Measurement]:
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
    contestants = {name: TimedStep(step, batches) for name, step in steps.items()}
    rates = take_turns(contestants, rounds=setting.rounds, seconds=setting.seconds)
    figures = {name: [rate * setting.examples / 1e3 for rate in rounds] for name, rounds in rates.items()}
    measure = f"lookup, A, {num_rows:,} rows"
    return [
        _compare("lookup", measure, figures["ours"], peer, figures[peer], limit)
        for peer, limit in LOOKUP_LIMITS.items()
        if peer in figures
    ]
