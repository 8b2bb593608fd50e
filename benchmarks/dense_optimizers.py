"""Measures the dense optimizers against torch's Adam, and Shampoo against the matrix products that its formula needs.

    python benchmarks/dense_optimizers.py                     # about three minutes on two cores
    python benchmarks/dense_optimizers.py --quick             # does everything run?
    python benchmarks/dense_optimizers.py --device cuda

Contestants take turns in one process, in rounds; a ratio is the median of the rounds' ratios of times, ours to the
peer's, so that less is better. Two lists of parameters are moved: those of a deep model, 30 from 1 to 1,048,576
elements, and 500 small ones. A time is that of one step, averaged over turns of complete cycles of 20 steps, so that
Shampoo's statistics, made every 20 steps, are in it.

After the warm-up the peer is the bare products of the formula on the same matrices, plain torch calls without anything
around them: per axis two with the eigenvectors in every step; the products of the gradient with itself in a step with
new statistics; and the eigendecomposition in a step with new preconditioners.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from monolith.cli._bench import machine, report
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread, tell
from monolith.cli._bench.timing import TimedStep, quiet_collector, take_turns, timed
from monolith.optim import Adamom, Rmsprop, Shampoo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

Shapes = list[tuple[int, ...]]

_LAYERS = (1024, 1024, 512, 512, 256, 256, 128, 128, 64, 64, 32, 32, 16, 16, 8, 1)
LISTS: Mapping[str, Shapes] = {
    "model of 30 parameters": [shape for wide, narrow in pairwise(_LAYERS) for shape in ((narrow, wide), (narrow,))],
    "500 small parameters": [(16,), (16, 16), (1,), (64, 8)] * 125,
}
CYCLE = 20
NEVER = 10**9


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit status is 0 unless --check found a requirement that is not met."""
    parser = argparse.ArgumentParser(
        description="Measures the dense optimizers.", epilog="example: python benchmarks/dense_optimizers.py --quick"
    )
    parser.add_argument("--quick", action="store_true", help="short turns: a smoke test")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: 2)")
    parser.add_argument("--device", default="cpu", help="where the parameters are (default: cpu)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contestant (default: 15)")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a requirement is not met")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    turns = Turns(args.device, rounds=2 if args.quick else args.rounds, seconds=0.01 if args.quick else 0.3)
    measurements = []
    for name, shapes in LISTS.items():
        tell(f"    {name}")
        measurements += turns.beside_adam(name, shapes)
        measurements += turns.beside_products(name, shapes)
    head = machine.describe() | {"torch": torch.__version__, "threads": str(args.threads), "device": args.device}
    print(report.as_text(measurements, head), end="")
    return int(args.check and any(each.ok is False for each in measurements))


class Turns:
    """Contestants on one device, alternating, with turns of one length."""

    def __init__(self, device: str, *, rounds: int, seconds: float) -> None:
        self.device = torch.device(device)
        self.rounds = rounds
        self.seconds = seconds

    def beside_adam(self, name: str, shapes: Shapes) -> list[Measurement]:
        """Every optimizer in its first steps, Shampoo before its warm-up."""
        times = self._times(
            {
                "Adam": torch.optim.Adam(self._params(shapes), foreach=True).step,
                "Adamom": Adamom(self._params(shapes)).step,
                "Rmsprop": Rmsprop(self._params(shapes)).step,
                "Rmsprop, v2": Rmsprop(self._params(shapes), use_v2=True).step,
                "Shampoo before its warm-up": Shampoo(self._params(shapes), warmup=NEVER).step,
            },
            CYCLE,
        )
        adam = times.pop("Adam")
        limits = {"Shampoo before its warm-up": 2.0}
        return [
            self._measurement(f"{optimizer}, {name}", own, ("Adam", adam), limits.get(optimizer, 1.2))
            for optimizer, own in times.items()
        ]

    def beside_products(self, name: str, shapes: Shapes) -> list[Measurement]:
        """Shampoo after its warm-up, in each of its three kinds of steps."""
        kinds = {
            "plain step": {"tau_1": NEVER, "tau_2": NEVER},
            "step with new statistics": {"tau_1": NEVER, "tau_2": 1},
            "step with new preconditioners": {"tau_1": 1, "tau_2": 1},
        }
        measurements = []
        for kind, cycle in kinds.items():
            optimizer = Shampoo(self._params(shapes), warmup=0, tau_1=1, tau_2=1)
            for _ in range(2):
                optimizer.step()
            optimizer.param_groups[0].update(cycle)
            products = Products(optimizer, grams=cycle["tau_2"] == 1, eigen=cycle["tau_1"] == 1)
            steps: dict[str, Callable[[], object]] = {"ours": optimizer.step, "products": products}
            # Eigendecompositions take seconds: there a turn is one step.
            times = self._single_times(steps) if products.eigen else self._times(steps, 1)
            label = f"Shampoo, {kind}, {name}"
            measurements.append(self._measurement(label, times["ours"], ("products", times["products"]), 1.2))
        return measurements

    def _params(self, shapes: Shapes) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        params = [torch.randn(shape, generator=generator).to(self.device).requires_grad_() for shape in shapes]
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(self.device)
        return params

    def _times(self, steps: Mapping[str, Callable[[], object]], cycle: int) -> dict[str, list[float]]:
        """Milliseconds of a step of every contestant in every round."""

        def run(step: Callable[[], object]) -> None:
            for _ in range(cycle):
                self._waited(step)

        contestants = {name: TimedStep(run, [step]) for name, step in steps.items()}
        rates = take_turns(contestants, rounds=self.rounds, seconds=self.seconds)
        return {name: [1e3 / (cycle * rate) for rate in own] for name, own in rates.items()}

    def _single_times(self, steps: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Milliseconds of single steps, alternating."""
        times: dict[str, list[float]] = {name: [] for name in steps}
        with quiet_collector():
            for _ in range(max(2, self.rounds // 3)):
                for name, step in steps.items():
                    times[name].append(1e3 * timed(self._waited, step))
        return times

    def _waited(self, step: Callable[[], object]) -> None:
        step()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _measurement(self, label: str, ours: list[float], peer: tuple[str, list[float]], limit: float) -> Measurement:
        return Measurement(
            row="dense_optimizers",
            measure=label,
            figure=statistics.median(ours),
            unit="ms",
            peer=peer[0],
            peer_figure=statistics.median(peer[1]),
            ratio=median_ratio(ours, peer[1]),
            limit=limit,
            sense=Sense.AT_MOST,
            note=f"ours {spread(ours)}, {peer[0]} {spread(peer[1])}",
        )


class Products:
    """The matrix products and eigendecompositions that one step of an optimizer's formula needs, and nothing else."""

    def __init__(self, optimizer: Shampoo, *, grams: bool, eigen: bool) -> None:
        self._work = list(_matrices(optimizer))
        self._grams = grams
        self.eigen = eigen

    def __call__(self) -> None:
        """One step's worth."""
        for matrix, state, axis in self._work:
            pvec = state[f"pvec{axis}"]
            if self._grams:
                torch.mm(matrix, matrix.T)
            if self.eigen:
                torch.linalg.eigh(state[f"s{axis}"])
            torch.mm(torch.mm(matrix.T, pvec), pvec.T)


def _matrices(optimizer: Shampoo) -> Iterator[tuple[Tensor, dict[str, Any], int]]:
    """For every axis of every parameter: the gradient as a matrix with that axis first, the state, the axis."""
    for param in optimizer.param_groups[0]["params"]:
        for axis, size in enumerate(param.shape):
            yield param.grad.movedim(axis, 0).reshape(size, -1), optimizer.state[param], axis


if __name__ == "__main__":
    sys.exit(main())
