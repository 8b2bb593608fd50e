"""When the examples of a batch were seen, by the batch's own word."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from monolith.errors import InvalidArgumentError
from monolith.hooks import REQUEST_TIME
from monolith.tables import bound_times
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["REQUEST_TIME", "BatchClock", "time_of", "times_of"]

_log = logging.getLogger(__name__)

_TIME_END = 2**32


def time_of(batch: Any) -> int | None:
    """Returns the newest request time of a batch, Unix seconds; None if it has no such column.

    >>> import torch
    >>> time_of({"req_time": torch.tensor([1_700_000_000, 1_700_000_060])})
    1700000060
    """
    times = times_of(batch)
    return None if times is None else int(times.max())


class BatchClock:
    """The times of a run's batches, in order: one plausible time for a batch whose examples disagree.

    A single example that is dated years ahead must not make all rows look old: the rule is that of
    `monolith.tables.event_times`. Not thread-safe.

    Args:
        newest: Time to continue from, in Unix seconds; 0: no earlier batch.
    """

    def __init__(self, newest: int = 0) -> None:
        self.newest = newest
        """Newest time of all batches so far."""
        self.num_ahead = 0
        """Examples whose times were not believed."""

    def time_of(self, batch: Any) -> int | None:
        """Returns the newest time of a batch that is not far ahead; None if it has no such column.

        Raises:
            InvalidArgumentError: the time of an example is not in Unix seconds; names it.
        """
        times = times_of(batch)
        if times is None:
            return None
        seconds = times.reshape(-1).to("cpu", torch.int64).numpy()
        lowest, highest = int(seconds.min()), int(seconds.max())
        if lowest < 0 or highest >= _TIME_END:
            raise InvalidArgumentError(_wrong_time(seconds))
        bounded = bound_times(seconds, self.newest)
        time = highest
        if bounded.num_ahead:
            time = int(bounded.times.max())
            self._count(bounded.num_ahead, example=int(seconds.argmax()), got=highest, taken=time)
        self.newest = max(self.newest, time)
        return time

    def _count(self, num_ahead: int, *, example: int, got: int, taken: int) -> None:
        if self.num_ahead == 0:
            _log.warning(
                "column %r: example %d of a batch has the time %d, more than a day ahead of all before; %d is taken for"
                " the batch. One batch moves the clock by a day at most; later ones are only counted",
                REQUEST_TIME,
                example,
                got,
                taken,
            )
        self.num_ahead += num_ahead


def _wrong_time(seconds: NDArray[np.int64]) -> str:
    example = int(np.flatnonzero((seconds < 0) | (seconds >= _TIME_END))[0])
    got = int(seconds[example])
    unit = "; it looks like milliseconds" if _TIME_END <= got < 1000 * _TIME_END else ""
    return (
        f"column {REQUEST_TIME!r}: example {example} of the batch must have Unix seconds in [0, 2^32), got {got}{unit}."
        f" To leave such examples out: dataset.filter(data.InRange({REQUEST_TIME!r}, 0, 2**32, bad=BadRecords(limit)))"
    )


def times_of(batch: Any) -> Tensor | None:
    """Returns the request times of a batch unchanged; None if it has none."""
    # A dict is the usual batch, and the check of an abstract class is slow.
    if not (type(batch) is dict or isinstance(batch, Mapping)) or REQUEST_TIME not in batch:
        return None
    times = batch[REQUEST_TIME]
    while isinstance(times, Ragged):
        times = times.values
    if not isinstance(times, Tensor):
        raise TypeError(f"column {REQUEST_TIME!r}: expected int64 Unix seconds, got {type(times).__name__}")
    if times.is_floating_point() or times.is_complex():
        raise TypeError(f"column {REQUEST_TIME!r}: expected int64 Unix seconds, got {times.dtype}")
    return times if times.numel() else None
