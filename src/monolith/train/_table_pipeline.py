"""Pipelined table access: reads rows of coming batches and applies the last gradients while the model computes.

With ``c`` batches read ahead, step k begins, in this order::

    read the rows of batch k + c       seen: every update up to k - 1; with postponed pushes up to k - 2
    apply the gradients of step k - 1  postponed pushes only; otherwise step k itself waits for its own

so a batch is trained on rows that lack at most ``c`` updates, ``c + 1`` with postponed pushes, ``c + 2`` where these
are delayed by one more step (then those of step k - 2 are applied there), and results do not depend on timing. For rows
in this process, one thread runs the submitted operations in order. Stores of other processes are asynchronous: the
training thread calls them itself, several reads and pushes are in flight together, the forward pass waits for the rows
that it needs, and pushes are only waited for when more are in flight than a batch may lack. `settle` is the fence that
a checkpoint needs: everything is applied, and rows that were read ahead are read again.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.config import Config, config, require_at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from monolith.nn import Embeddings
    from monolith.nn.embeddings import BatchContext, GradientStep
    from monolith.train.input.feed import BatchFeed

_log = logging.getLogger(__name__)


@config
class PipelineConfig(Config):
    """How far reads of tables run ahead of the model, and updates lag."""

    prefetch: int = 0
    """Batches whose rows are read ahead; each lacks one update more."""
    postpush: bool = False
    """Apply the gradients of a step while the next one computes."""
    late_update: bool = False
    """Apply them while the step after that one computes; needs `postpush`."""
    wait_for_batches: bool = False
    """Wait until all batches to be read ahead are available, so that results do not depend on their timing. Not for
    live streams: their last batch would wait for the next one."""

    def __post_init__(self) -> None:
        require_at_least(self, 0, "prefetch")
        if self.late_update and not self.postpush:
            raise ValueError(
                "PipelineConfig: late_update (enable_pipelined_bwda2a) puts off further what postpush"
                " (enable_async_optimize) puts off, got postpush=False; set both"
            )

    @property
    def push_delay(self) -> int:
        """Number of steps by which gradients are applied after their own step."""
        return self.postpush + self.late_update


class _Here(Executor):
    """Executor that runs calls immediately, in the calling thread; errors are set on the future."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **options))
        except Exception as error:  # noqa: BLE001 - raised by the reader of the result
            future.set_exception(error)
        return future


class Waiting:
    """A batch before its turn, and its reads if they were begun."""

    __slots__ = ("batch_context", "reads")

    def __init__(self, batch_context: BatchContext | None) -> None:
        self.batch_context = batch_context
        """None: a place without a batch, where other processes have one."""
        self.reads: list[Future[None]] | None = None
        """Reads that are done, or started at stores of other processes, when the future is done."""

    def wait(self) -> None:
        """Returns when all were begun, and those of this process are done."""
        for read in self.reads or ():
            read.result()

    def forget(self) -> None:
        """Rows that were read are read again when they are needed."""
        self.wait()
        if self.batch_context is not None:
            self.batch_context.wait_for_rows()
        self.reads = None

    def drop(self) -> None:
        """Discards the batch."""
        if self.batch_context is not None:
            self.batch_context.drop()


class _DeferredPush(NamedTuple):
    """The submitted updates of one step, one for each module."""

    steps: Sequence[GradientStep]
    begun: Sequence[Future[None]]

    @property
    def is_due(self) -> bool:
        """Returns whether the next step reads the outcome: always for local rows, else once it is available."""
        return not self.is_remote or self.is_answered

    @property
    def is_remote(self) -> bool:
        """Returns whether all rows are in other processes."""
        return all(step.is_remote for step in self.steps)

    @property
    def is_answered(self) -> bool:
        """Returns whether all outcomes have arrived."""
        return all(start.done() for start in self.begun) and all(step.done() for step in self.steps)

    def finish(self) -> None:
        """Waits for all outcomes; raises the first error. After an interrupt it can be called again."""
        failed: Exception | None = None
        for begun, step in zip(self.begun, self.steps, strict=True):
            wait([begun])
            try:
                step.result()
            except Exception as error:  # noqa: BLE001 - raised when the others are known
                failed = error if failed is None else failed
        if failed is not None:
            raise failed


class TablePipeline:
    """Orders reads and updates of the tables of one session. Only the training thread may use it."""

    def __init__(self, settings: PipelineConfig) -> None:
        self._settings = settings
        self._is_ahead = bool(settings.prefetch or settings.postpush)
        self._here = _Here()
        # It has no thread before the first call.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="session/tables") if self._is_ahead else self._here
        self._window: deque[Waiting] = deque()
        self._postponed: deque[Sequence[GradientStep]] = deque()
        """Updates of the last steps that have not been submitted, oldest first; empty for a step without gradients."""
        self._pushes: deque[_DeferredPush] = deque()
        """Submitted updates whose outcome has not been read yet, oldest first."""
        self._most_pushes = settings.prefetch + max(1, settings.push_delay)
        """Number of updates that a batch may lack, which is also how many may be in flight."""
        self.is_whole = True
        """False when an update of a step before the present one has failed, so that rows lack what dense weights have
        learned."""

    @property
    def needs_batch(self) -> bool:
        """Returns whether the next step waits for a batch of the input: none is read ahead."""
        return not self._window

    @property
    def in_flight(self) -> int:
        """Number of steps whose updates are postponed, or in flight with an unread outcome."""
        return len(self._pushes) + sum(map(bool, self._postponed))

    def next_batch(self, feed: BatchFeed) -> BatchContext | None:
        """Returns the next batch; its rows are read or in flight if rows are read ahead.

        Returns:
            The batch; None if this process has no batch and follows others in this step.

        Raises:
            OutOfRangeError: the input has ended.
        """
        if not self._is_ahead:
            return feed.take()
        self._fill(feed)
        first = self._window.popleft()
        self._start_due_pushes()
        self._wait_for(first)
        return first.batch_context

    def attach(self, embeddings: Sequence[Embeddings]) -> None:
        """Called with the modules that have tables when the model is complete."""

    def begin_input(self) -> None:
        """Called before the first batch of each input."""

    def begin_step(self) -> None:
        """Submits postponed updates, for a batch that did not come from `next_batch`."""
        self._start_due_pushes()

    def push(self, steps: Sequence[GradientStep]) -> None:
        """Applies the gradients of a step: now, or concurrently with the next step."""
        self.is_whole = True
        if self._settings.postpush:
            self._postponed.append(steps)
        else:
            self._begin(steps)
            self._finish(most=0)

    def push_nothing(self, number: int, step: int) -> None:
        """Follows the updates of a step of other processes. There are none where each trains its own steps."""

    def wait_for_push(self) -> None:
        """Waits for what steps before have postponed, as far as it is due; an error of it is raised here, once."""
        self._finish(most=self._most_pushes)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Wraps reads of rows: if an earlier update has failed, raises its error instead of the read's."""
        try:
            yield
        except Exception as error:
            while self._pushes and self._pushes[0].is_remote and self._pushes[0].is_answered:
                try:
                    self._finish(most=len(self._pushes) - 1)
                except Exception as cause:
                    raise cause from error
            raise

    def settle(self) -> None:
        """Applies all updates and discards rows that were read ahead; they are read again when needed."""
        self._start_pushes(left=0)
        self._finish(most=0)
        for waiting in self._window:
            waiting.forget()

    def close(self) -> None:
        """Discards batches that were read ahead and postponed updates. Idempotent.

        Does not wait for operations in flight to other processes; their stores complete them.
        """
        self._thread.shutdown(wait=True)
        while self._window:
            self._window.popleft().drop()
        while self._postponed:
            for step in self._postponed.popleft():
                step.drop()
        while self._pushes:
            _leave(self._pushes.popleft())

    def _fill(self, feed: BatchFeed) -> None:
        for waiting in self._window:
            self._read(waiting)
        while len(self._window) <= self._settings.prefetch:
            must_wait = not self._window or self._settings.wait_for_batches
            try:
                batch_context = feed.take() if must_wait else feed.take_if_there()
            except BaseException:
                if not self._window:
                    raise
                return  # it is raised again when the batches before it are trained
            if batch_context is None:
                return
            waiting = Waiting(batch_context)
            self._window.append(waiting)
            self._read(waiting)

    def _wait_for(self, waiting: Waiting) -> None:
        try:
            with self.explained():
                waiting.wait()
        except BaseException:
            waiting.drop()
            raise

    def _read(self, waiting: Waiting) -> None:
        batch_context = waiting.batch_context
        if waiting.reads is None and batch_context is not None:
            waiting.reads = [
                self._runner(is_remote=embeddings.store.traits.remote).submit(batch_context.read_ahead, embeddings)
                for embeddings in batch_context.planned
            ]

    def _start_due_pushes(self) -> None:
        self._start_pushes(left=max(0, self._settings.push_delay - 1))

    def _start_pushes(self, *, left: int) -> None:
        """Submits the postponed updates, except the newest `left`."""
        while len(self._postponed) > left:
            steps = self._postponed.popleft()
            if steps:
                self._begin(steps)

    def _begin(self, steps: Sequence[GradientStep]) -> None:
        begun = [self._runner(is_remote=step.is_remote).submit(step.begin) for step in steps]
        self._pushes.append(_DeferredPush(steps, begun))

    def _finish(self, *, most: int) -> None:
        """Waits for pushes until at most `most` are left that are not due.

        If a push has failed, the later ones are finished too and their errors are noted on the first. Rows that were to
        be read after the failed push are read again.
        """
        while self._pushes and (len(self._pushes) > most or self._pushes[0].is_due):
            try:
                self._pushes[0].finish()
            except Exception as error:
                self.is_whole = False
                self._pushes.popleft()
                self._finish_behind(error)
                for waiting in self._window:
                    waiting.reads = None
                raise
            self._pushes.popleft()

    def _finish_behind(self, error: Exception) -> None:
        while self._pushes:
            try:
                self._pushes[0].finish()
            except Exception as later:  # noqa: BLE001 - noted on the first error
                error.add_note(f"a later push failed too: {later}")
            self._pushes.popleft()

    def _runner(self, *, is_remote: bool) -> Executor:
        return self._here if is_remote else self._thread


def _leave(push: _DeferredPush) -> None:
    """Abandons a push without waiting; failures so far are only logged, as another error is being raised."""
    if push.is_answered:
        try:
            push.finish()
        except Exception as error:  # noqa: BLE001 - the first error is the one to raise
            _log.warning("session: closed after %s", error)
    for step in push.steps:
        step.drop()
