"""Last batches of all workers in a shard of dense weights: the rules of the core's clock, for an owner in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.batch import NOTHING_APPLIED, BatchStamp

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PushClock"]


@dataclass(slots=True)
class _Worker:
    incarnation: int = 0
    """Current incarnation; 0: none."""
    was_resumed: bool = False
    """Whether a resume ended its last incarnation."""
    last: BatchStamp | None = None


class PushClock:
    """The last batch of every worker, and which incarnations may push. Not thread-safe: the owner serializes calls.

    A worker pushes its updates in order; each names the one before it, so that duplicates and gaps are detected. `join`
    begins an incarnation: pushes of earlier ones are rejected from then on.
    """

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}
        self._incarnations = 0
        self.steps = 0
        """Batches of all workers: the sum of their last numbers plus one each."""

    @property
    def stamps(self) -> dict[int, BatchStamp]:
        """Worker -> its last applied batch, for workers that have one."""
        return {number: state.last for number, state in sorted(self._workers.items()) if state.last is not None}

    def last_applied(self, worker: int) -> int:
        """Returns the number of the worker's last batch, or -1."""
        state = self._workers.get(worker)
        return NOTHING_APPLIED if state is None or state.last is None else state.last.seq

    def steps_of_others(self, worker: int) -> int:
        """Returns `steps` without those of the worker."""
        return self.steps - (self.last_applied(worker) + 1)

    def join(self, worker: int) -> tuple[int, BatchStamp | None]:
        """Begins an incarnation; returns its number, which is unique here, and the worker's last batch."""
        state = self._workers.setdefault(worker, _Worker())
        self._incarnations += 1
        state.incarnation = self._incarnations
        return state.incarnation, state.last

    def is_new(self, stamp: BatchStamp, *, previous: int, incarnation: int) -> bool:
        """Returns whether a push is to be applied; False: it was applied before.

        Raises:
            FailedPreconditionError: its incarnation is over, or a push before it is missing; names the last one
                applied.
        """
        state = self._workers.get(stamp.worker, _Worker())
        _require_current(state, stamp.worker, incarnation)
        last = self.last_applied(stamp.worker)
        if stamp.seq <= last:
            return False
        if previous != last:
            raise FailedPreconditionError(
                f"dense weights: worker {stamp.worker}: batch {stamp.seq} names {_shown(previous)} as the push before"
                f" it, but the last one applied here is {_shown(last)}; push what follows it first"
            )
        return True

    def record(self, stamp: BatchStamp) -> None:
        """Records an applied batch. Call it immediately after the weights have changed."""
        self.steps += stamp.seq - self.last_applied(stamp.worker)
        self._workers[stamp.worker].last = stamp

    def resume(self, stamps: Iterable[BatchStamp]) -> None:
        """Replaces all stamps and ends all incarnations.

        Raises:
            InvalidArgumentError: two stamps of one worker; nothing has changed.
        """
        given: dict[int, BatchStamp] = {}
        for stamp in stamps:
            if given.setdefault(stamp.worker, stamp) is not stamp:
                raise InvalidArgumentError(
                    f"dense weights: two stamps of worker {stamp.worker} were given; give the last one of each worker"
                )
        for state in self._workers.values():
            state.was_resumed = state.was_resumed or state.incarnation != 0
            state.incarnation, state.last = 0, None
        self.steps = sum(stamp.seq + 1 for stamp in given.values())
        for worker, stamp in given.items():
            self._workers.setdefault(worker, _Worker()).last = stamp


def _require_current(state: _Worker, worker: int, incarnation: int) -> None:
    if incarnation == state.incarnation != 0:
        return
    if state.incarnation == 0 and not state.was_resumed:
        why = f"incarnation {incarnation} is unknown, the worker has not joined; join first"
    elif state.incarnation == 0:
        why = f"incarnation {incarnation} is over: the weights were put back to a saved state; join again"
    elif incarnation < state.incarnation:
        why = f"this incarnation ({incarnation}) is over, a later one ({state.incarnation}) has joined; join again"
    else:
        why = f"incarnation {incarnation} is unknown, the present one is {state.incarnation}; join again"
    raise FailedPreconditionError(f"dense weights: worker {worker}: {why}")


def _shown(seq: int) -> str:
    return "none" if seq == NOTHING_APPLIED else str(seq)
