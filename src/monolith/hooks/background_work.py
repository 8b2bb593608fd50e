"""Work in the background of the steps: queued pushes, refreshes of cached variables, and prefetch queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from monolith.data.prefetch import MultiQueueRunner
from monolith.hook import Hook
from monolith.ps.client import (
    CachedVariableMeta,
    assign_all_cached_variables,
    current_cached_variables,
    fetch_all_cached_variables,
    use_cached_variables,
)

if TYPE_CHECKING:
    from monolith.data.prefetch import ElementQueue
    from monolith.hook import Call, HookedSession, StepContext


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


class FetchAllCachedVariablesHook(Hook):
    """Fetches cached variables alongside each step, and assigns them after it; the first step waits for both.

    A step computes with values that are at most one step old, and waits for no server.

    Args:
        meta: The variables; None: those of `fetch_all_cached_variables` where the hook is created.
    """

    def __init__(self, meta: CachedVariableMeta | None = None) -> None:
        self._meta = current_cached_variables() if meta is None else meta
        self._first_run = True

    def after_create_session(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Makes the next step the first one."""
        self._first_run = True

    def before_run(self, context: StepContext) -> Call:  # noqa: ARG002 - a hook's signature
        """Returns the fetch that runs alongside the step."""
        if self._first_run:
            self._first_run = False
            self._fetch()
            self._assign()
        return self._fetch

    def after_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Assigns the fetched values, which the next step uses."""
        self._assign()

    def _fetch(self) -> None:
        with use_cached_variables(self._meta):
            fetch_all_cached_variables()

    def _assign(self) -> None:
        with use_cached_variables(self._meta):
            assign_all_cached_variables()


class EnqueueHook(Hook):
    """Starts the thread of a queue with the session, and stops it when the session closes, with or without an error.

    A rebuilt session starts the thread again, with the remaining elements of the queue; a session that rewinds its
    input calls `clear` of the queue first.

    Args:
        q: The queue, as `enqueue_dicts_with_queue_return` returns it.
    """

    def __init__(self, q: ElementQueue) -> None:
        self.runner = MultiQueueRunner(q.queues, [q.enqueue_op])
        """The runner of the thread."""

    def after_create_session(self, session: HookedSession) -> None:
        """Starts the thread."""
        session.on_close(self.runner.stop)
        self.runner.start()
