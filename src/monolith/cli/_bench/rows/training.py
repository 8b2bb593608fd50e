"""Lookup and update of workload A: ours against FBGEMM's fused Adagrad, torch's, and a dict in front of torch."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch

from monolith.cli._bench import ours, peers, workload
from monolith.cli._bench.measurement import Measurement, median_ratio, spread
from monolith.cli._bench.progress import tell
from monolith.cli._bench.timing import Contestant, take_turns

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

FBGEMM, TORCH, DICT = "FBGEMM fused", "torch sparse Adagrad", "dict + torch"
LIMITS = {FBGEMM: 4.0, TORCH: 5.0, DICT: 20.0}
TOLERANCE = 1e-5
"""Largest difference of a weight after one step: sums of thousands of float32 gradients in another order."""


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
    contestants = _enter(setting, num_rows, batches)
    rates = take_turns(contestants, rounds=setting.rounds, seconds=setting.seconds)
    thousands = {name: [rate * setting.examples / 1e3 for rate in each] for name, each in rates.items()}
    name = f"lookup + apply_gradients, A, {num_rows:,} rows"
    return [
        _compare(name + suffix, thousands[form], peer, thousands.get(peer), LIMITS[peer])
        for form, suffix in (("calls", ""), ("planned", ", planned"))
        for peer in LIMITS
    ]


def _enter(setting: Setting, num_rows: int, batches: list[workload.Batch]) -> dict[str, Contestant[workload.Batch]]:
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
    return {name: Contestant(step, batches) for name, step in steps.items()}


def _check_agreement(got: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    difference = float((got - expected).abs().max())
    if not difference <= TOLERANCE:
        raise AssertionError(
            f"{name} and torch differ by {difference} after one step from equal weights, expected at most {TOLERANCE}: "
            "they do not do the same work, so their times cannot be compared"
        )


def _compare(
    measure: str, figures: list[float], peer: str, peer_figures: list[float] | None, limit: float
) -> Measurement:
    missing = peer_figures is None
    return Measurement(
        row="training",
        measure=measure,
        figure=statistics.median(figures),
        unit="k examples/s",
        peer=peer,
        peer_figure=None if peer_figures is None else statistics.median(peer_figures),
        ratio=None if peer_figures is None else median_ratio(figures, peer_figures),
        limit=limit,
        note=f"peer is not installed: {peers.FBGEMM_INSTALL}" if missing else f"ours {spread(figures)}",
    )
