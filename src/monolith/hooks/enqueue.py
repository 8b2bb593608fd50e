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
    """Starts the thread of a queue with the session, and ends it when the session closes, whichever way.

    A session that is rebuilt starts it again, with what was left in the queue; one that sets its input back calls
    `clear` of the queue first.

    Args:
        q: The queue, as `enqueue_dicts_with_queue_return` returns it.
    """

    def __init__(self, q: ElementQueue) -> None:
        self._runner = MultiQueueRunner(q.queues, [q.enqueue_op])

    @property
    def runner(self) -> MultiQueueRunner:
        """What runs the thread."""
        return self._runner

    def after_create_session(self, session: HookedSession) -> None:
        """Starts the thread."""
        session.on_close(self._runner.stop)
        self._runner.start()
