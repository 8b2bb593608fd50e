"""Runs beside each step what the step before has queued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from monolith.hook import Hook

if TYPE_CHECKING:
    from monolith.hook import Call, HookedSession, StepContext

__all__ = ["AsyncPushHook"]


class _Sized(Protocol):
    """A queue that says how many elements wait in it."""

    def size(self) -> int: ...


class AsyncPushHook(Hook):
    """Runs `ops` beside every step from the second on, and at the end until the queue is empty.

    Step t computes while the push of step t - 1 runs: `ops` runs as often as elements wait when the step begins, mostly
    once. When a session ends by an error, what is left in the queue is not run.

    Args:
        queue: Where the steps put the arguments of `ops`.
        ops: Takes one element out of the queue and works on it.
    """

    def __init__(self, queue: _Sized, ops: Call) -> None:
        self._queue = queue
        self._run_ops = ops
        self._queue_init = False

    def begin(self) -> None:
        """Begins with a queue in which nothing is known to wait."""
        self._queue_init = False

    def before_run(self, context: StepContext) -> Call | None:  # noqa: ARG002 - a hook's signature
        """The call for what the last step has queued, if it has."""
        # Counted here, because the step itself may queue before the call begins: that is for the next one.
        num_waiting = self._queue.size() if self._queue_init else 0
        if num_waiting < 2:
            return self._run_ops if num_waiting else None
        return lambda: [self._run_ops() for _ in range(num_waiting)]

    def after_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Notes that the steps fill the queue."""
        self._queue_init = self._queue_init or self._queue.size() > 0

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Runs what is left."""
        while self._queue.size() > 0:
            self._run_ops()
