"""The exchanges of a store in a step: ids, rows, gradients, times; the read of all ranks, and its metrics.

In a read, ids travel to the owners of the rows, and the rows are returned. The times of an update are bounded once, as
if one process had the batches of all ranks.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from monolith.collective.lock_step import Call
from monolith.collective.serial_executor import RaisedByAllError
from monolith.collective.sharded.calls import gather_texts, pack, unpack
from monolith.errors import FailedPreconditionError
from monolith.tables import NOTHING_APPLIED, EventClock, new_rows
from monolith.tables.local import NO_TICKET, LocalRows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from monolith.collective.lock_step import Agreed, LockStep
    from monolith.collective.sharded.owner import IdMessage, RowOwner, SentIds, ShardedPlan
    from monolith.tables import BoundedTimes
    from monolith.tables.local import NativeTables, PreparedUpdate


class Tickets:
    """The numbers under which owners keep the open plans of this rank. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = NO_TICKET + 1
        self._open: dict[int, None] = {}

    @property
    def oldest(self) -> int:
        """The oldest open number; none before it is open."""
        with self._lock:
            return next(iter(self._open), self._next)

    def open(self, plan: ShardedPlan) -> None:
        """Assigns a number to a plan that is about to be read for an update; its previous number is released."""
        with self._lock:
            self._open.pop(plan.ticket, None)
            plan.ticket = self._next
            self._open[plan.ticket] = None
            self._next += 1

    def close(self, plan: ShardedPlan) -> None:
        """Releases the number of a plan that has ended, or whose read has failed."""
        with self._lock:
            self._open.pop(plan.ticket, None)
            plan.ticket = NO_TICKET


class RowExchange:
    """Exchanges of one store. Used by the line's thread."""

    def __init__(self, lock_step: LockStep, native: NativeTables, owner: RowOwner, subject: str) -> None:
        self.lock_step = lock_step
        self.wire = lock_step.line.wire
        self.native = native
        self.owner = owner
        self.subject = subject
        self.clock = SharedClock()
        self.tickets = Tickets()
        self._nothing = [0] * self.wire.size

    def ids(self, message: IdMessage | None, num_words: Sequence[int]) -> SentIds:
        """Exchanges ids: returns those of all ranks for rows of this one; `num_words` is the size from each rank."""
        received = np.empty(sum(num_words), np.int64)
        self._move(
            received,
            _NO_WORDS if message is None else message.words,
            num_words,
            self._nothing if message is None else message.num_words,
        )
        return self.owner.take(received, num_words)

    def rows(self, plan: ShardedPlan | None, sent: SentIds, step: int) -> NDArray[np.float32] | None:
        """Sends rows to all ranks; returns the rows of this rank's plan."""
        answer, sizes = self.owner.read(sent, step)
        received = new_rows((0 if plan is None else plan.num_values,))
        self._move(received, answer, self._nothing if plan is None else plan.message.num_values, sizes)
        return None if plan is None else received

    def floats(
        self, sent: SentIds, message: IdMessage | None, values: NDArray[np.float32] | None
    ) -> list[NDArray[np.float32]]:
        """Exchanges a value per float of the rows, such as gradients; returns those of every rank for rows here."""
        sizes = [sent.merged.num_values(rank) for rank in range(self.wire.size)]
        received = new_rows((sum(sizes),))
        self._move(
            received,
            _NO_FLOATS if values is None else values,
            sizes,
            self._nothing if message is None else message.num_values,
        )
        return _split(received, sizes)

    def whole_numbers(
        self, values: NDArray[np.int64], sent_sizes: Sequence[int], sizes: Sequence[int]
    ) -> list[NDArray[np.int64]]:
        """Exchanges numbers; returns those of every rank."""
        received = np.empty(sum(sizes), np.int64)
        self._move(received, values, sizes, sent_sizes)
        return _split(received, sizes)

    def _move(
        self, received: NDArray[Any], sent: NDArray[Any], received_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        self.wire.exchange(_tensor(received), _tensor(sent), received_sizes, sent_sizes)


def _split(array: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    parts, begin = [], 0
    for size in sizes:
        parts.append(array[begin : begin + size])
        begin += size
    return parts


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if array.size else torch.empty(0, dtype=tensor.dtype)  # an empty array has a stride of 0


_NO_WORDS = np.empty(0, np.int64)
_NO_FLOATS = np.empty(0, np.float32)


_WORDS, _TICKET, _OLDEST = range(3)
"""Numbers of its read that each rank sends to each owner."""
_HEAD = struct.Struct("<q?")


class RankReads:
    """The reads of a store. Used by the line's thread."""

    def __init__(self, exchange: RowExchange, *, name: str) -> None:
        self._exchange = exchange
        self.kind = f"read {name}"
        self.on_training: Callable[[ShardedPlan, SentIds], None] | None = None
        """Called with every read for training of this rank."""

    def look(self, plan: ShardedPlan, step: int) -> LocalRows:
        """Reads rows without training."""
        return LocalRows(torch.from_numpy(self._make(plan, step, is_training=False)), NOTHING_APPLIED)

    def make(self, plan: ShardedPlan, *, after: int, step: int, train: bool) -> LocalRows:
        """Reads the rows of a worker's plan.

        Raises:
            RaisedByAllError: `after` was not applied; the other ranks have their rows.
        """
        worker = plan.stamp.worker
        seen = self._exchange.native.core.last_applied(worker)
        values = self._make(plan, step, is_training=train)
        if after > seen:
            raise RaisedByAllError(
                FailedPreconditionError(
                    f"{self._exchange.subject}: cannot read after batch {after} of worker {worker}: its last applied"
                    f" batch is {seen}; apply it first"
                )
            )
        return LocalRows(torch.from_numpy(values), seen)

    def follow(self, agreed: Agreed, arguments: bytes) -> None:
        """Takes part in the read of the other ranks, at a rank without one."""
        self._take_part(agreed, arguments, None)

    def _make(self, plan: ShardedPlan, step: int, *, is_training: bool) -> NDArray[np.float32]:
        numbers = np.empty((self._exchange.wire.size, _OLDEST + 1), np.int64)
        numbers[:, _WORDS] = plan.message.num_words
        numbers[:, _TICKET] = plan.ticket
        numbers[:, _OLDEST] = self._exchange.tickets.oldest
        arguments = _HEAD.pack(step, is_training)
        values = self._exchange.lock_step.run(
            Call(self.kind, arguments=arguments),
            work=lambda agreed: self._take_part(agreed, arguments, plan),
            sizes=torch.from_numpy(numbers),
        )
        assert values is not None  # noqa: S101 - the plan was given
        return values

    def _take_part(self, agreed: Agreed, arguments: bytes, plan: ShardedPlan | None) -> NDArray[np.float32] | None:
        step, is_training = _HEAD.unpack(arguments)
        numbers = agreed.sizes.tolist()
        sent = self._exchange.ids(None if plan is None else plan.message, [row[_WORDS] for row in numbers])
        values = self._exchange.rows(plan, sent, step)
        owner = self._exchange.owner
        ranks = [rank for rank, is_active in enumerate(agreed.active) if is_active]
        for rank in ranks:
            owner.forget(rank, numbers[rank][_OLDEST])
        if is_training:
            if plan is not None and self.on_training is not None:
                self.on_training(plan, sent)
            tickets = {rank: numbers[rank][_TICKET] for rank in ranks}
            owner.keep(sent, {rank: ticket for rank, ticket in tickets.items() if ticket != NO_TICKET})
        return values


class AlltoallMetrics(NamedTuple):
    """Numbers of one batch of one rank, under their names in summaries.

    ``*_splits`` counts what this rank exchanges with each owner for its own batch, ``*_dist`` what each rank exchanges
    with this one as an owner; ids are distinct ids, rows and gradients are counted in floats.
    """

    scalars: dict[str, int]
    histograms: dict[str, list[int]]


def alltoall_metrics(
    native: NativeTables, owned: Sequence[range], plan: ShardedPlan, sent: SentIds, *, slot: str | None
) -> AlltoallMetrics:
    """Returns the numbers of a read.

    The ids of the table `slot` are counted as ``<slot>_size``.
    """
    cells = np.diff(plan.core.splits).reshape(-1, len(native))
    by_owner = np.stack([cells[buckets.start : buckets.stop].sum(0) for buckets in owned])
    ids, floats = plan.message.num_keys, plan.message.num_values
    ranks = range(len(owned))
    scalars = {
        "all_fids_size": plan.core.num_ids,
        "Alltoall_id_sizes": sum(ids),
        "Alltoall_emb_sizes": sum(floats),
        "Alltoall_grad_sizes": sum(floats),
        **_extremes("Alltoall_id", ids),
        **_extremes("Alltoall_emb", floats),
    }
    if slot is not None:
        begin, end = plan.table_splits[native.number_of(slot) :][:2].tolist()
        scalars[f"{slot}_size"] = end - begin
    histograms = {
        "shard_sizes": ids,
        "sharded_slot_sizes": by_owner.reshape(-1).tolist(),
        "fused_embedding_splits": (by_owner * np.array(native.dims)).reshape(-1).tolist(),
        "Alltoall_id_dist": [sent.merged.num_keys(rank) for rank in ranks],
        "Alltoall_emb_dist": [sent.merged.num_values(rank) for rank in ranks],
        "Alltoall_id_splits": ids,
        "Alltoall_emb_splits": floats,
        "Alltoall_grad_splits": floats,
    }
    return AlltoallMetrics(scalars, histograms)


def _extremes(name: str, sizes: Sequence[int]) -> dict[str, int]:
    least, most = int(np.argmin(sizes)), int(np.argmax(sizes))
    return {
        f"{name}_min_idx": least,
        f"{name}_min_size": sizes[least],
        f"{name}_max_idx": most,
        f"{name}_max_size": sizes[most],
    }


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
