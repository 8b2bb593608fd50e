"""Gradients averaged among ranks: `test_gradient_averaging.py` runs each ``case_...``."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from collective import ranks
from monolith import collective
from monolith.collective import Agreed, Call, LockStep
from monolith.collective.gradient_averaging import AveragingConfig, Fusion, average_gradients, num_told, told

SHAPES = [(2, 3), (4,), (), (0, 2), (5, 1), (3,)]
WEIGHTS = [torch.zeros(shape, dtype=torch.float64 if n == 4 else torch.float32) for n, shape in enumerate(SHAPES)]
FUSIONS: list[Fusion] = ["none", "one", "grouped"]
EVERY_WAY = [
    AveragingConfig(fusion=fusion, half_precision=half, deterministic=deterministic)
    for fusion in FUSIONS
    for half in (False, True)
    for deterministic in (False, True)
]
IN_ORDER = AveragingConfig(deterministic=True)


def gradients_of(rank: int) -> list[Tensor]:
    """Floats whose sum depends on the order, and whose bits survive no float16."""
    generator = torch.Generator().manual_seed(rank)
    return [
        torch.randn(weight.shape, generator=generator, dtype=torch.float64).mul(10.0**rank).to(weight.dtype)
        for weight in WEIGHTS
    ]


def averaged(gradients: Sequence[Tensor | None] | None, size: int, options: AveragingConfig) -> list[Tensor | None]:
    """The way of a step; None: this rank is idle."""
    line = collective.training_line()
    results: list[list[Tensor | None]] = []

    def average(agreed: Agreed, mine: Sequence[Tensor | None]) -> None:
        results.append(
            average_gradients(
                line.wire,
                mine,
                weights=WEIGHTS,
                present=agreed.sizes,
                num_active=agreed.num_active,
                options=options,
            )
        )

    if gradients is None:
        nothing = [None] * len(WEIGHTS)
        kind = LockStep(line).follow({"update": lambda agreed, _: average(agreed, nothing)}).result()
        assert kind == "update"
    else:
        words = told(gradients).expand(size, num_told(len(gradients)))
        LockStep(line).run(Call("update", str(options)), sizes=words, work=lambda agreed: average(agreed, gradients))
    return results[0]


def in_order(parts: Sequence[Tensor]) -> Tensor:
    """As one process adds micro-batches."""
    return functools.reduce(torch.add, parts)


def same_bits(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.shape == right.shape and left.numpy().tobytes() == right.numpy().tobytes()


def case_in_the_order_of_ranks_it_is_the_mean_of_one_process_bit_for_bit(rank: int, size: int) -> None:
    want = [in_order(parts) / size for parts in zip(*map(gradients_of, range(size)), strict=True)]
    for fusion in FUSIONS:
        got = averaged(gradients_of(rank), size, AveragingConfig(fusion=fusion, deterministic=True))
        assert all(map(same_bits, got, want))


def case_every_way_gives_the_mean(rank: int, size: int) -> None:
    want = [in_order(parts) / size for parts in zip(*map(gradients_of, range(size)), strict=True)]
    for options in EVERY_WAY:
        got = averaged(gradients_of(rank), size, options)
        for mean, expected in zip(got, want, strict=True):
            assert mean is not None
            assert mean.dtype == expected.dtype
            tolerance = 2e-3 * 10**size if options.half_precision else 1e-5
            torch.testing.assert_close(mean, expected, rtol=1e-5, atol=tolerance)
        gathered = collective.allgather(torch.cat([mean.double().reshape(-1) for mean in got if mean is not None]))
        assert all(torch.equal(part, gathered[: len(part)]) for part in gathered.chunk(size))  # the same everywhere


def case_half_precision_takes_effect(rank: int, size: int) -> None:
    gradient = torch.full((3,), 1.0 + 2.0**-20)
    for deterministic in (False, True):
        for half in (False, True):
            options = AveragingConfig(half_precision=half, deterministic=deterministic)
            got = averaged([*[None] * 5, gradient.clone()], size, options)[5]
            assert got is not None
            assert (got == 1.0).all() == half or size == 3  # a third has no end in either


def case_what_a_rank_lacks_counts_as_zero_and_what_all_lack_stays_away(rank: int, size: int) -> None:
    def here(r: int, place: int) -> bool:
        return place != 3 and (r + place) % 2 == 0

    all_gradients = [gradients_of(r) for r in range(size)]
    mine = [gradient if here(rank, n) else None for n, gradient in enumerate(all_gradients[rank])]
    for options in (AveragingConfig(), IN_ORDER):
        got = averaged([None if each is None else each.clone() for each in mine], size, options)
        for place, mean in enumerate(got):
            parts = [all_gradients[r][place] for r in range(size) if here(r, place)]
            if not parts:
                assert mean is None
                continue
            assert mean is not None
            assert same_bits(mean, in_order(parts) / size) or options != IN_ORDER
            torch.testing.assert_close(mean, in_order(parts) / size, rtol=1e-5, atol=1e-5)


def case_idle_ranks_do_not_count(rank: int, size: int) -> None:
    if size == 1:
        return
    idle = size - 2
    active = [r for r in range(size) if r != idle]
    want = [in_order(parts) / len(active) for parts in zip(*map(gradients_of, active), strict=True)]
    got = averaged(None if rank == idle else gradients_of(rank), size, IN_ORDER)
    assert all(map(same_bits, got, want))
    minus_zero = [None if rank == idle else [torch.zeros_like(weight).neg_() for weight in WEIGHTS]][0]
    assert all(mean is not None and torch.signbit(mean).all() for mean in averaged(minus_zero, size, IN_ORDER))


def case_skipped_every_rank_keeps_its_own(rank: int, size: int) -> None:
    got = averaged(gradients_of(rank), size, AveragingConfig(skip=True))
    assert all(map(same_bits, got, gradients_of(rank)))


CASES: dict[str, Callable[[int, int], None]] = {
    name: value for name, value in sorted(globals().items()) if name.startswith("case_")
}


def main(folder: Path, rank: int, size: int) -> None:
    """Run every case and write its traceback, or nothing, under this rank's number."""
    ranks.meet(folder, rank, size)
    collective.init(timeout_seconds=25)
    failures = {}
    for name, case in CASES.items():
        try:
            case(rank, size)
        except BaseException:  # noqa: BLE001 - also what pytest raises when a claim does not hold
            failures[name] = traceback.format_exc()
    collective.shutdown()
    ranks.write_result(folder, rank, {"ran": list(CASES), "failures": failures})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
