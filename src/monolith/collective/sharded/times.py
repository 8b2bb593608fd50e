"""The times of an update of all ranks: bounded once, as if one process had all their batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith.collective.sharded.calls import gather_texts, pack, unpack
from monolith.tables import EventClock

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from monolith.collective.sharded.exchange import RowExchange
    from monolith.collective.sharded.owner import IdMessage, SentIds
    from monolith.tables import BoundedTimes
    from monolith.tables.local import PreparedUpdate

_DAY = 86400
_NOBODY = -1
_NO_TIMES = np.empty(0, np.int64)
_ANY_TIME = np.zeros(1, np.int64)


class SharedClock(EventClock):
    """The newest time of all tables and owners; the same on every rank, since all see every update."""

    def __init__(self) -> None:
        self.newest = 0
        super().__init__(lambda: self.newest)

    def is_ahead(self, times: NDArray[np.int64]) -> bool:
        """Returns whether some times may have to be bounded, which is decided when all times are gathered."""
        return bool(len(times)) and (self.newest == 0 or int(times.max()) > self.newest + _DAY)


class UpdateTimes:
    """Times of each rank with a batch: one time for all its ids, or one for each.

    Args:
        exchange: Exchange with the other ranks.
        times_by_rank: Rank -> the one time of its ids, or -1 where they differ; and the newest, or -1 where it
            has no ids.
        own: Update of this rank.
    """

    def __init__(
        self, exchange: RowExchange, times_by_rank: Mapping[int, tuple[int, int]], own: PreparedUpdate | None
    ) -> None:
        self._exchange = exchange
        self._one = {rank: one for rank, (one, _) in times_by_rank.items()}
        self._newest = max((newest for _, newest in times_by_rank.values()), default=_NOBODY)
        self._own = own
        self._times = None if own is None else own.times
        self._bounded: BoundedTimes | None = None

    def bound(self) -> None:
        """Gathers the times of all ranks, and bounds those that lie far ahead."""
        own, clock = self._own, self._exchange.clock
        mine = b"" if own is None else pack(own.plan.num_ids, [own.times.tobytes()])
        answers = {rank: unpack(text) for rank, text in enumerate(gather_texts(self._exchange.wire, mine)) if text}
        times_by_rank = {rank: np.frombuffer(blobs[0], np.int64) for rank, (_, blobs) in answers.items()}
        if len(times_by_rank) == 1 or _is_one_number(times_by_rank.values()):
            self._bounded = clock.bounded(next(iter(times_by_rank.values())))
            parts = dict.fromkeys(times_by_rank, self._bounded.times)
        else:
            arrays = [np.broadcast_to(times, answers[rank][0]) for rank, times in times_by_rank.items()]
            self._bounded = clock.bounded(np.concatenate(arrays))
            ends = np.cumsum([len(part) for part in arrays])[:-1]
            parts = dict(zip(times_by_rank, np.split(self._bounded.times, ends), strict=True))
        self._one = {rank: _only_time(times) for rank, times in parts.items()}
        self._newest = max((int(times.max()) for rank, times in parts.items() if answers[rank][0]), default=_NOBODY)
        if own is not None:
            self._times = parts[self._exchange.wire.rank]

    @property
    def newest(self) -> int:
        """Newest time of the ids of all ranks; 0 without ids."""
        return max(self._newest, 0)

    def of_rows(self, sent: SentIds, message: IdMessage | None) -> NDArray[np.int64]:
        """Returns the times of the ids of all ranks here, in the format of the core."""
        wire, merged = self._exchange.wire, sent.merged
        arrays: list[NDArray[np.int64]] = [
            np.array([self._one[rank]] if rank in self._one and merged.num_keys(rank) else [], np.int64)
            for rank in range(wire.size)
        ]
        uneven = [rank for rank, one in self._one.items() if one < 0]
        if uneven:
            newest, num_keys = _NO_TIMES, [0] * wire.size
            if message is not None and self._own is not None and self._times is not None and wire.rank in uneven:
                newest, num_keys = self._own.plan.newest_times(self._times), message.num_keys
            sizes = [merged.num_keys(rank) if rank in uneven else 0 for rank in range(wire.size)]
            for rank, times in enumerate(self._exchange.whole_numbers(newest, num_keys, sizes)):
                if rank in uneven:
                    arrays[rank] = times
        return merged.times_of_ids(arrays) if merged.plan.num_unique else _ANY_TIME

    def count(self) -> None:
        """Updates the clock with these times, after the update was applied."""
        clock = self._exchange.clock
        clock.newest = max(clock.newest, self._newest)
        if self._bounded is not None:
            clock.count(self._bounded)


def _is_one_number(times_of_ranks: Collection[NDArray[np.int64]]) -> bool:
    """Returns whether all ranks have one and the same time for all their ids."""
    return all(len(times) == 1 for times in times_of_ranks) and len({int(times[0]) for times in times_of_ranks}) == 1


def _only_time(times: NDArray[np.int64]) -> int:
    """Returns the time of all ids of a rank, or -1 where they differ; any value without ids."""
    if not len(times):
        return 0
    return int(times[0]) if (times == times[0]).all() else _NOBODY
