"""When the examples of a batch were seen, by the batch's own word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from monolith.tensors import Ragged

__all__ = ["REQUEST_TIME", "time_of"]

REQUEST_TIME: Final = "req_time"
"""The column with the Unix seconds of the request that an example comes from."""


def time_of(batch: Any) -> int | None:
    """The newest request time of a batch, Unix seconds; None if it has no such column.

    >>> import torch
    >>> time_of({"req_time": torch.tensor([1_700_000_000, 1_700_000_060])})
    1700000060
    """
    # A dict is the usual batch, and an abstract class takes its time to know it.
    if not (type(batch) is dict or isinstance(batch, Mapping)) or REQUEST_TIME not in batch:
        return None
    times = batch[REQUEST_TIME]
    while isinstance(times, Ragged):
        times = times.values
    if not isinstance(times, Tensor):
        raise TypeError(f"column {REQUEST_TIME!r}: expected int64 Unix seconds, got {type(times).__name__}")
    if times.is_floating_point() or times.is_complex():
        raise TypeError(f"column {REQUEST_TIME!r}: expected int64 Unix seconds, got {times.dtype}")
    return int(times.max()) if times.numel() else None
