"""Pushes of dense gradients: prepared, in flight, and their order at a shard."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from monolith.tables import NOTHING_APPLIED, BatchStamp, Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from monolith.ps.dense.wire import FrameCall


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
        last: dict[int, BatchStamp] = {}
        for stamp in stamps:
            if last.setdefault(stamp.worker, stamp) is not stamp:
                raise InvalidArgumentError(
                    f"dense weights: two stamps of worker {stamp.worker} were given; give the last one of each worker"
                )
        for state in self._workers.values():
            state.was_resumed = state.was_resumed or state.incarnation != 0
            state.incarnation, state.last = 0, None
        self.steps = sum(stamp.seq + 1 for stamp in last.values())
        for worker, stamp in last.items():
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseWorkerSession:
    """State of a worker on the servers when it joined."""

    applied: BatchStamp | None
    """Its last batch that every server had applied."""
    next_seq: int
    """No server had applied a batch of this number or above."""
    applied_by_server: Sequence[BatchStamp | None] = ()
    """Its last applied batch at each server; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPush:
    """The gradients and learning rates of a batch, before they are sent."""

    stamp: BatchStamp
    step: int
    rates: Mapping[str, list[dict[str, Any]]]
    gradients: Mapping[str, Tensor | None]


class PendingPush(Pending[int]):
    """A push in flight to all servers; its result is the number of its batch."""

    def __init__(self, seq: int, calls: Sequence[FrameCall], on_applied: Callable[[Sequence[bytes]], None]) -> None:
        self._seq = seq
        self._calls = calls
        self._on_applied = on_applied

    def done(self) -> bool:
        """Returns whether every server has answered."""
        return all(call.done for call in self._calls)

    def result(self, timeout_seconds: float | None = None) -> int:
        """Waits for all servers; returns the number of the batch.

        Raises:
            OpError: the error of the first server that rejected it or could not be reached in time.
        """
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while end is not None and not self.done():
            if time.monotonic() > end:
                raise DeadlineExceededError(
                    f"dense weights: push of batch {self._seq}: not done in {timeout_seconds} s"
                )
            time.sleep(0.0005)
        heads = [call.wait()[0] for call in self._calls]
        if heads:
            self._calls = ()  # report once: a second report would restore outdated counts
            self._on_applied(heads)
        return self._seq
