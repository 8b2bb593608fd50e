"""The two workloads: batches of ids, and the row numbers that stand for the same ids in static tables.

Workload A draws rows by a bounded zipf law, as traffic does; workload B draws them evenly, so that nearly every row
comes from memory. Row `r` of a static table is id `mixed_ids(r)` of ours.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

ZIPF_EXPONENT = 1.05
SEED = 20_240_501

Ids = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadBatch:
    """One batch of n = B * F ids, int64 [n]."""

    rows: torch.Tensor
    """Row numbers, for peers that do no id mapping."""

    ids: torch.Tensor
    """The 64-bit ids of those rows."""


def mixed_ids(rows: Ids) -> Ids:
    """Returns a different, random-looking id for every row number (the finaliser of splitmix64, a bijection).

    Ids like `k * odd constant` would be kind to some hash functions: their low bits never collide.
    """
    z = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x1234567)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).view(np.int64)


def zipf_ranks(generator: np.random.Generator, *, num_rows: int, count: int) -> Ids:
    """Ranks in [0, num_rows) by bounded zipf 1.05, from the inverse of the continuous distribution function."""
    exponent = 1.0 - ZIPF_EXPONENT
    uniform = generator.random(count)
    ranks = (1.0 - uniform * (1.0 - num_rows**exponent)) ** (1.0 / exponent)
    chosen: Ids = np.clip(ranks.astype(np.int64), 1, num_rows) - 1
    return chosen


def zipf_batches(setting: Setting, num_rows: int) -> list[WorkloadBatch]:
    """Workload A. Ranks are scattered over the table: popular rows do not lie side by side in reality either."""
    generator = np.random.default_rng(SEED)
    scattered = generator.permutation(num_rows)
    count = setting.ids_per_batch
    return [
        _batch(scattered[zipf_ranks(generator, num_rows=num_rows, count=count)]) for _ in range(setting.num_batches)
    ]


def uniform_batches(setting: Setting, num_rows: int) -> list[WorkloadBatch]:
    """Draws the batches of workload B."""
    generator = np.random.default_rng(SEED)
    count = setting.ids_per_batch
    return [_batch(generator.integers(0, num_rows, count)) for _ in range(setting.num_batches)]


def output_gradient(count: int, dim: int) -> torch.Tensor:
    """Returns one fixed output gradient, float32 [count, dim]."""
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(SEED))


def _batch(rows: Ids) -> WorkloadBatch:
    return WorkloadBatch(rows=torch.from_numpy(rows), ids=torch.from_numpy(mixed_ids(rows)))
