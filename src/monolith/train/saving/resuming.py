"""The batch after which a worker resumes, if owners of rows and weights have different last batches.

An owner is one server's part of a store, or of the dense weights. They differ when the worker died between two of them,
or when one of them was restored from an earlier state. Batches are replayed with their numbers: an owner that lacks a
batch applies it, an owner that has it ignores it. That needs an input which can be read again from a position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monolith.tables import NOTHING_APPLIED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.tables import BatchStamp


class OwnerProgress(NamedTuple):
    """The state of a worker at one owner."""

    server: int
    stamp: BatchStamp | None
    """Its last batch at this owner; None: none."""
    is_dense: bool = False
    """Whether it keeps dense weights; else rows."""


class Resumed(NamedTuple):
    """The batch after which a worker resumes, and the updates that it lost."""

    behind: BatchStamp | None
    """The batch after which its input resumes; None: from the beginning."""
    next_seq: int
    """Number of its next batch."""
    lost: dict[int, int]
    """Server -> updates that its rows lack and that will not come again."""
    lost_dense: dict[int, int]
    """Lost batches of its dense weights: a batch may be pushed to them later than to the rows."""


def resume(known: Sequence[OwnerProgress], acknowledged: BatchStamp | None) -> Resumed:
    """Decides where a worker resumes.

    Args:
        known: State of the worker at each owner.
        acknowledged: The last batch that all owners have confirmed to this process, since all of them were restored
            together; None: unknown. Batches up to it that an owner lacks were lost with that owner.

    >>> from monolith.tables.batch import BatchStamp
    >>> stamps = [BatchStamp(worker=0, seq=seq, position=b"at %d" % seq) for seq in range(10)]
    >>> resume([OwnerProgress(0, stamps[7]), OwnerProgress(1, stamps[5])], None)[1:]
    (6, {}, {})
    >>> resume([OwnerProgress(0, stamps[7]), OwnerProgress(1, stamps[3])], stamps[6])[1:]
    (7, {1: 3}, {})
    """
    behind = _behind(known, acknowledged)
    seq = NOTHING_APPLIED if behind is None else behind.seq
    lost: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for owner in known:
        missing = seq - _seq(owner.stamp)
        if missing > 0:
            of_kind = lost[owner.is_dense]
            of_kind[owner.server] = max(missing, of_kind.get(owner.server, 0))
    return Resumed(behind, seq + 1, *lost)


def _behind(known: Sequence[OwnerProgress], acknowledged: BatchStamp | None) -> BatchStamp | None:
    candidates = [owner.stamp for owner in known]
    if acknowledged is not None and acknowledged.position:
        return acknowledged
    if acknowledged is None and all(stamp is None or stamp.position for stamp in candidates):
        return min(candidates, key=_seq, default=None)
    # An input without positions cannot replay a batch.
    return max([*candidates, acknowledged], key=_seq)


def _seq(stamp: BatchStamp | None) -> int:
    return NOTHING_APPLIED if stamp is None else stamp.seq
