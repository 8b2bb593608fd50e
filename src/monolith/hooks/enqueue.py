"""Fills a prefetch queue while a session runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.data.prefetch import MultiQueueRunner
from monolith.hook import Hook

if TYPE_CHECKING:
    from monolith.data.prefetch import ElementQueue
    from monolith.hook import HookedSession

__all__ = ["EnqueueHook"]


class EnqueueHook(Hook):
    """Starts the thread of a queue with the session, and stops it when the session closes, with or without an error.

    A rebuilt session starts the thread again, with the remaining elements of the queue; a session that rewinds its
    input calls `clear` of the queue first.

    Args:
        q: The queue, as `enqueue_dicts_with_queue_return` returns it.
    """

    def __init__(self, q: ElementQueue) -> None:
        self._runner = MultiQueueRunner(q.queues, [q.enqueue_op])

    @property
    def runner(self) -> MultiQueueRunner:
        """The runner of the thread."""
        return self._runner

    def after_create_session(self, session: HookedSession) -> None:
        """Starts the thread."""
        session.on_close(self._runner.stop)
        self._runner.start()
