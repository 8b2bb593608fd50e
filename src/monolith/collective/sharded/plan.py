"""The plan of a batch whose rows the ranks keep, and its encoding for their owners."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith.tables import BatchStamp
from monolith.tables.local import RemotePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monolith import _core

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
