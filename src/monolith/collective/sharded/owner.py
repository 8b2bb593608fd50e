"""The rows of one rank, as their owner serves them to all ranks: reads for several plans together, and updates.

Plans of the ranks come here as words: the stamp of the batch and its ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith.tables import Applied, BatchStamp, made_from, new_rows
from monolith.tables.local import RemotePlan, push_to_core

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from monolith import _core
    from monolith.tables.local import LocalStore

_NOTHING = np.empty(0, np.int64)
_PER_UNIQUE_ID = 1
_STAMP_WORDS = 4
_WORD_BYTES = 8


class ShardedPlan(RemotePlan):
    """A plan, and its part for each owner."""

    __slots__ = ("message",)

    message: IdMessage
    """Set by the store that makes the plan."""


class IdMessage:
    """The distinct ids of a plan and the stamp of its batch, as int64 words for each owner, end to end.

    A part begins with worker, seq, event time and the number of bytes of the position, then comes the position, padded
    to a multiple of a word, then the ids as in `_core.PlanParts`.
    """

    __slots__ = ("num_keys", "num_values", "num_words", "words")

    def __init__(self, parts: _core.PlanParts, stamp: BatchStamp) -> None:
        head = _stamp_words(stamp)
        of_ids = parts.num_words.tolist()
        self.num_keys: list[int] = parts.num_keys.tolist()
        """Number of distinct ids for each owner."""
        self.num_values: list[int] = parts.num_values.tolist()
        """Number of floats of the rows for each owner."""
        self.num_words = [len(head) + count for count in of_ids]
        """Number of words for each owner."""
        self.words = np.empty(sum(self.num_words), np.int64)
        begin, taken = 0, 0
        for count in of_ids:
            self.words[begin : begin + len(head)] = head
            begin += len(head)
            self.words[begin : begin + count] = parts.words[taken : taken + count]
            begin += count
            taken += count


def read_stamp(words: NDArray[np.int64]) -> tuple[BatchStamp, NDArray[np.int64]]:
    """Returns the stamp of a part, and its ids."""
    worker, seq, event_time_ms, num_bytes = words[:_STAMP_WORDS].tolist()
    end = _STAMP_WORDS - (-num_bytes // _WORD_BYTES)
    position = words[_STAMP_WORDS:end].tobytes()[:num_bytes]
    return BatchStamp(worker=worker, seq=seq, position=position, event_time_ms=event_time_ms), words[end:]


def _stamp_words(stamp: BatchStamp) -> NDArray[np.int64]:
    size = len(stamp.position)
    filled = stamp.position.ljust(-(-size // _WORD_BYTES) * _WORD_BYTES, b"\0")
    numbers: Sequence[int] = (stamp.worker, stamp.seq, stamp.event_time_ms, size)
    return np.concatenate([np.array(numbers, np.int64), np.frombuffer(filled, np.int64)])


class SentIds(NamedTuple):
    """The ids that some ranks sent, and their plan; it keeps the locations of the rows for the update."""

    merged: _core.MergedPlans
    words: Mapping[int, NDArray[np.int64]]
    """Rank -> its part, of the ranks that sent one."""
    stamps: Mapping[int, BatchStamp]
    """Rank -> the stamp of its batch."""


class RankPush(NamedTuple):
    """The numbers of one rank's update, without its gradients."""

    ticket: int
    """Ticket of the read that left the ids here, or `NO_TICKET`: they were sent again."""
    first_seq: int
    previous: int
    incarnation: int
    """Incarnation of the worker at the pushing rank."""
    scale: float


class OwnerStep(NamedTuple):
    """One update of all ranks, as its owner makes it."""

    sent: SentIds
    total: NDArray[np.float32]
    latest: NDArray[np.float32] | None
    rates: NDArray[np.float32]
    step: int
    times: NDArray[np.int64]
    newest_time: int
    """Newest time of the ids at all owners; 0 without ids."""
    scale: float
    is_finite: bool


class RowOwner:
    """The rows of this rank, served to all ranks. Used by the line's thread."""

    def __init__(self, local: LocalStore, owned: range, num_ranks: int) -> None:
        self._core = local.native.core
        self._bounds = (owned.start, owned.stop)
        self._num_ranks = num_ranks
        self._kept: dict[tuple[int, int], SentIds] = {}
        """(rank, its ticket) -> ids that a read kept for the update."""
        self._incarnations: dict[int, tuple[int, int, int]] = {}
        """Worker -> the rank that pushes its batches, its incarnation there, and here."""

    def join(self, worker: int, rank: int) -> tuple[int, _core.BatchStamp | None]:
        """Begins an incarnation of a worker at this rank."""
        incarnation, stamp = self._core.join(worker)
        self._incarnations[worker] = (rank, incarnation, incarnation)
        return incarnation, stamp

    def end_incarnations(self) -> None:
        """Ends all incarnations, after the rows were restored."""
        self._incarnations.clear()

    # Ids

    def take(self, received: NDArray[np.int64], sizes: Sequence[int]) -> SentIds:
        """Returns the ids of all ranks that sent some; their parts are concatenated."""
        words, stamps = {}, {}
        begin = 0
        for rank, size in enumerate(sizes):
            if size:
                stamps[rank], words[rank] = read_stamp(received[begin : begin + size])
            begin += size
        return self._merge(words, stamps)

    def keep(self, sent: SentIds, tickets: Mapping[int, int]) -> None:
        """Keeps ids for the updates that follow."""
        for rank, ticket in tickets.items():
            self._kept[rank, ticket] = sent

    def forget(self, rank: int, oldest: int) -> None:
        """Discards the plans of a rank with tickets before `oldest`."""
        for key in [key for key in self._kept if key[0] == rank and key[1] < oldest]:
            del self._kept[key]

    def pushed(self, pushes: Mapping[int, RankPush], sent: SentIds | None) -> SentIds:
        """Returns the ids of an update: those that reads have kept, as they are, or merged again."""
        by_rank = {
            rank: sent if sent is not None and rank in sent.words else self._kept[rank, push.ticket]
            for rank, push in pushes.items()
        }
        first = next(iter(by_rank.values()))
        if all(ids is first for ids in by_rank.values()) and first.words.keys() == by_rank.keys():
            return first
        words = {rank: ids.words[rank] for rank, ids in by_rank.items()}
        return self._merge(words, {rank: ids.stamps[rank] for rank, ids in by_rank.items()})

    def _merge(self, words: Mapping[int, NDArray[np.int64]], stamps: Mapping[int, BatchStamp]) -> SentIds:
        parts = [words.get(rank, _NOTHING) for rank in range(self._num_ranks)]
        sizes = np.array([len(part) for part in parts])
        whole = parts[int(sizes.argmax())] if np.count_nonzero(sizes) <= 1 else np.concatenate(parts)
        return SentIds(self._core.merge_parts(whole, sizes, self._bounds), words, stamps)

    # Rows

    def read(self, sent: SentIds, step: int) -> tuple[NDArray[np.float32], list[int]]:
        """Returns the concatenated rows for each rank, and the number of floats for each."""
        merged = sent.merged
        sizes = [merged.num_values(rank) for rank in range(self._num_ranks)]
        answer = new_rows((sum(sizes),))
        self._core.read_merged(merged, answer, step)
        return answer, sizes

    def total_of(
        self, sent: SentIds, gradients: Sequence[NDArray[np.float32]], pushes: Mapping[int, RankPush]
    ) -> tuple[NDArray[np.float32], bool]:
        """Returns the sum of the gradients in the order of the ranks, and whether it is finite."""
        total = new_rows((self._core.num_values(sent.merged.plan),))
        scales = [pushes[rank].scale if rank in pushes else 1.0 for rank in range(self._num_ranks)]
        is_finite = sent.merged.sum_rows(gradients, total, None if set(scales) == {1.0} else scales)
        return total, is_finite

    def first_of(self, sent: SentIds, values: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Returns for each id the row of the first rank that has it."""
        rows = new_rows((self._core.num_values(sent.merged.plan),))
        sent.merged.first_rows(values, rows)
        return rows

    def is_duplicate(self, update: OwnerStep, pushes: Mapping[int, RankPush]) -> bool:
        """Returns whether the update was applied before."""
        return self._core.is_duplicate(self._core_pushes(update, pushes))

    def apply(self, update: OwnerStep, pushes: Mapping[int, RankPush]) -> Applied:
        """Makes one optimizer step for each id, with the stamps of all ranks."""
        applied = self._core.apply(
            update.sent.merged.plan,
            update.total,
            _PER_UNIQUE_ID,
            None,
            None,
            update.rates,
            update.step,
            update.times,
            update.scale,
            update.latest,
            update.is_finite,
            self._core_pushes(update, pushes),
            newest_time=update.newest_time,
        )
        for rank, push in pushes.items():
            self._kept.pop((rank, push.ticket), None)
        return made_from(Applied, applied)

    def _core_pushes(self, update: OwnerStep, pushes: Mapping[int, RankPush]) -> list[_core.Push]:
        return [self._core_push(rank, push, update.sent.stamps[rank]) for rank, push in pushes.items()]

    def _core_push(self, rank: int, push: RankPush, stamp: BatchStamp) -> _core.Push:
        known = self._incarnations.get(stamp.worker)
        if known is None or known[:2] != (rank, push.incarnation):
            # Workers join at their own rank; here it is enough that the previous incarnation is rejected from now on.
            known = (rank, push.incarnation, self._core.join(stamp.worker)[0])
            self._incarnations[stamp.worker] = known
        return push_to_core(stamp, known[2], push.first_seq, push.previous)
