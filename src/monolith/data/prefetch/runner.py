"""The threads that fill queues: started, watched and always ended by one owner."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from monolith.data.prefetch.bounded_queue import BoundedQueue
from monolith.data.prefetch.staging import SideStreams
from monolith.errors import CancelledError, DeadlineExceededError, FailedPreconditionError, OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_logger = logging.getLogger(__name__)


class MultiQueueRunner:
    """Runs enqueue calls again and again, each in a thread of its own, until the data ends, one fails, or `stop`.

    The end of the data (OutOfRangeError or StopIteration) ends the thread that met it, and the last thread closes the
    queues. Any other error closes them immediately and is raised in the consumer, after the elements that were enqueued
    before it, with the traceback of the thread. As a context manager it starts and stops the threads.

    Args:
        queue: The queue that the calls fill, or a list of those that they fill together.
        enqueue_ops: Each adds one element to all of the queues, waiting for capacity.
        side_streams: Whether each thread works on a CUDA stream of its own. False for queues whose items are not
            staged: a consumer would use their tensors on a GPU before they are ready.
    """

    def __init__(
        self,
        queue: BoundedQueue[Any] | Sequence[BoundedQueue[Any]],
        enqueue_ops: Sequence[Callable[[], object]],
        *,
        side_streams: bool = True,
    ) -> None:
        self._queues = [queue] if isinstance(queue, BoundedQueue) else list(queue)
        self._enqueue_ops = list(enqueue_ops)
        if not self._queues or not self._enqueue_ops:
            raise ValueError(
                "MultiQueueRunner: expected at least one queue and one enqueue call, "
                f"got {len(self._queues)} queues and {len(self._enqueue_ops)} calls"
            )
        self._side_streams = side_streams
        self._lock = threading.Lock()
        # State below is protected by the lock.
        self._threads: list[threading.Thread] = []
        self._num_running = 0
        self._stopping = threading.Event()

    @property
    def name(self) -> str:
        """The name of the first queue."""
        return self._queues[0].name

    @property
    def queue(self) -> BoundedQueue[Any]:
        """The only queue.

        Raises:
            NotImplementedError: there are several.
        """
        if len(self._queues) > 1:
            raise NotImplementedError(f"runner {self.name!r} fills several queues")
        return self._queues[0]

    @property
    def threads(self) -> list[threading.Thread]:
        """Running threads."""
        return [thread for thread in self._threads if thread.is_alive()]

    def close_op(self) -> None:
        """Closes all queues; what waits, also for room, can still be taken."""
        for queue in self._queues:
            queue.close()

    def cancel_op(self) -> None:
        """Closes all queues, and cancels puts that wait for capacity."""
        for queue in self._queues:
            queue.close(cancel_pending_enqueues=True)

    def start(self) -> None:
        """Starts one thread for each call; opens queues that an earlier run closed, with what is left in them.

        Raises:
            FailedPreconditionError: threads of an earlier start still run.
        """
        with self._lock:
            if self._num_running:
                raise FailedPreconditionError(f"runner {self.name!r} is running already; stop it first")
            for queue in self._queues:
                queue.reopen()
            self._stopping = threading.Event()
            self._num_running = len(self._enqueue_ops)
            self._threads = [
                # Daemons: one that hangs in the user's function must not keep the process from ending.
                threading.Thread(
                    target=self._run, args=(op, self._stopping), name=f"{self.name}/enqueue-{index}", daemon=True
                )
                for index, op in enumerate(self._enqueue_ops)
            ]
            for thread in self._threads:
                thread.start()

    def stop(self, timeout_seconds: float | None = 60.0) -> None:
        """Cancels, and waits until all threads have ended; queued elements can still be taken.

        A thread that makes an element finishes it first, and keeps it for the next `start`. Does nothing if not
        started.

        Raises:
            DeadlineExceededError: a thread still runs after the given time, within the function that it calls.
        """
        self._stopping.set()
        if not self._threads:
            return
        self.cancel_op()
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if late := [thread.name for thread in self.threads if thread is not threading.current_thread()]:
            raise DeadlineExceededError(
                f"runner {self.name!r}: {', '.join(late)} did not stop within {timeout_seconds} s; "
                "the function that makes elements does not return"
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, enqueue: Callable[[], object], stopping: threading.Event) -> None:
        step = partial(SideStreams().run, enqueue) if self._side_streams else enqueue
        try:
            while not stopping.is_set():
                step()
        except (OutOfRangeError, StopIteration):
            _logger.debug("%s: end of data", threading.current_thread().name)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer must see it rather than wait
            self._fail(error, stopping)
        finally:
            with self._lock:  # also over the closing: a start right after it must not find its queues closed
                self._num_running -= 1
                if not self._num_running:
                    self.close_op()

    def _fail(self, error: BaseException, stopping: threading.Event) -> None:
        """Passes an error on, unless it reports a closed queue, which is how a thread is notified of a stop."""
        if isinstance(error, CancelledError) and (stopping.is_set() or self._queues[0].closed):
            return
        error.add_note(f"raised in thread {threading.current_thread().name!r}, which fills queue {self.name!r}")
        for queue in self._queues:
            queue.fail(error)
