"""Rows of a batch to all ranks in equal parts, by `collective` and by torch alone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from monolith import collective
from monolith.cli._bench import ours, workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.cli._bench.setting import Setting


@contextmanager
def opened(setting: Setting, *, num_rows: int) -> Iterator[dict[str, Callable[[int], object]]]:
    """Yields exchanges by `collective`, by two calls of torch (the first for sizes), and by one with given sizes."""
    collective.init()
    size = collective.size()
    part = len(set(workload.zipf_batches(setting, num_rows)[0].ids.tolist())) // size
    rows = torch.randn(part * size, ours.DIM)
    received, parts = torch.empty_like(rows), [part] * size

    def with_sizes(_: int) -> torch.Tensor:
        told = torch.empty(size, dtype=torch.int64)
        dist.all_to_all_single(told, torch.tensor(parts))
        numbers = told.tolist()
        made = rows.new_empty(sum(numbers), ours.DIM)
        dist.all_to_all_single(made, rows, numbers, parts)
        return made

    yield {
        "collective": lambda _: collective.alltoall(rows, parts),
        "bare": with_sizes,
        "rows alone": lambda _: dist.all_to_all_single(received, rows, parts, parts),
    }
