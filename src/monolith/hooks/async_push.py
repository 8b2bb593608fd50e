"""Runs the queued work of the previous step alongside each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from monolith.hook import Hook

if TYPE_CHECKING:
    from monolith.hook import Call, HookedSession, StepContext

__all__ = ["AsyncPushHook"]


class _Sized(Protocol):
    """A queue that reports its number of elements."""

    def size(self) -> int: ...


class AsyncPushHook(Hook):
    """Runs `ops` alongside every step from the second on, and at the end until the queue is empty.

    Step t computes while the push of step t - 1 runs: `ops` runs once for each element in the queue when the step
    begins, mostly once. When a session ends by an error, the remaining elements are not processed.

    Args:
        queue: Queue to which steps add the arguments of `ops`.
        ops: Removes one element from the queue and processes it.
    """

    def __init__(self, queue: _Sized, ops: Call) -> None:
        self._queue = queue
        self._run_ops = ops
        self._queue_init = False

    def begin(self) -> None:
        """Resets the hook: the queue counts as empty until a step has filled it."""
        self._queue_init = False

    def before_run(self, context: StepContext) -> Call | None:  # noqa: ARG002 - a hook's signature
        """Returns a call that processes the elements that the last step has queued, or None."""
        # Counted here, because the step itself may queue before the call begins: those elements are for the next step.
        num_waiting = self._queue.size() if self._queue_init else 0
        if num_waiting < 2:
            return self._run_ops if num_waiting else None
        return lambda: [self._run_ops() for _ in range(num_waiting)]

    def after_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Records that the steps fill the queue."""
        self._queue_init = self._queue_init or self._queue.size() > 0

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Processes the remaining elements."""
        while self._queue.size() > 0:
            self._run_ops()
