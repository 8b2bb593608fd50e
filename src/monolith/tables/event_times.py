"""The clock by which rows expire, and how far one batch may move it: a wrong time must not expire a table."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from monolith import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

_LOG = logging.getLogger(__name__)


class BoundedTimes(NamedTuple):
    """The times of one call as rows take them."""

    times: NDArray[np.int64]
    num_ahead: int
    """Number of times that were set back."""


def bound_times(times: NDArray[np.int64], newest: int) -> BoundedTimes:
    """Bounds the times of one batch: those that are far ahead are set back to the time of the data.

    More than a day beyond `newest` is far ahead. The data stands at `newest` or, if that is later, at the lower median
    of the batch, at most a day beyond `newest`. So a minority of wrong times moves nothing, a batch of nothing else a
    day, and a gap in the data closes day by day. Where no time was seen (0), the median is taken for `newest`, with
    more room if the times lie far apart. The rule itself is in `core/table/time_bound.h`.

    >>> import numpy as np
    >>> bounded = bound_times(np.array([1_700_000_060, 4_102_444_800, 1_700_000_090]), newest=1_700_000_000)
    >>> bounded.times.tolist(), bounded.num_ahead
    ([1700000060, 1700000090, 1700000090], 1)
    """
    bounded = _core.bound_times(times, newest)
    return BoundedTimes(times, 0) if bounded is None else BoundedTimes(*bounded)


class EventClock:
    """Bounds how far one call may move the newest time of a store. Thread-safe.

    Call `bounded` once per batch, before the batch is divided among owners of rows; owners take the times unchanged.
    Times that were set back are counted once the rows have them.
    """

    def __init__(self, newest: Callable[[], int]) -> None:
        self._newest = newest
        """The newest time of all tables and owners."""
        self._lock = threading.Lock()
        self.num_ahead = 0
        """Number of times set back so far."""

    def bounded(self, times: NDArray[np.int64]) -> BoundedTimes:
        """Returns the times as rows take them."""
        return bound_times(times, self._newest())

    def count(self, bounded: BoundedTimes) -> None:
        """Counts times that the rows have taken."""
        if not bounded.num_ahead:
            return
        with self._lock:
            is_first = self.num_ahead == 0
            self.num_ahead += bounded.num_ahead
        if is_first:
            _LOG.warning(
                "%d of %d times of a batch are more than a day ahead of all earlier ones and were set to at most %d;"
                " later occurrences are only counted (stats: times_ahead). One batch advances the expiry clock by at"
                " most a day: if the data has a gap, the next batches close it; otherwise check the data for wrong"
                " times",
                bounded.num_ahead,
                len(bounded.times),
                int(bounded.times.max()),
            )
