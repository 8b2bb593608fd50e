"""A push of dense gradients: prepared, and in flight."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.errors import DeadlineExceededError
from monolith.tables.batch import BatchStamp, Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from monolith.ps.dense.wire import FrameCall

__all__ = ["DenseWorkerSession", "PendingPush", "PreparedPush"]


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
    """A push in flight to all servers; its result is the number of its batch.

    Args:
        seq: Number of the batch.
        calls: Calls to the servers, begun.
        on_applied: Receives the heads of all answers.
    """

    def __init__(self, seq: int, calls: Sequence[FrameCall], on_applied: Callable[[Sequence[bytes]], None]) -> None:
        self._seq = seq
        self._calls = calls
        self._on_applied = on_applied

    def done(self) -> bool:
        """Returns whether every server has answered."""
        return all(each.done for each in self._calls)

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
