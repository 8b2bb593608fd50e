"""Tables beside the model: rows of coming batches are read, and gradients of the last one applied, while it computes.

One thread does both, in the order in which it was told, so results do not depend on timing. With ``c`` batches read
ahead, step k tells it::

    read the rows of batch k + c       seen: every update up to k - 1; with postponed pushes up to k - 2
    apply the gradients of step k - 1  postponed pushes only; otherwise step k itself waits for its own

so a batch is trained on rows that lack at most ``c`` updates, ``c + 1`` with postponed pushes. `settle` is the fence
that a checkpoint needs: everything is applied, and rows that were read ahead are read again.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from monolith.config import Config, config, require_at_least

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from monolith.nn._gradient_step import GradientStep
    from monolith.nn.batch_turn import BatchTurn
    from monolith.train._feed import BatchFeed

__all__ = ["PipelineConfig", "TablePipeline"]


@config
class PipelineConfig(Config):
    """How far tables and model may be apart."""

    prefetch: int = 0
    """Batches whose rows are read ahead; each lacks one update more."""
    postpush: bool = False
    """Apply the gradients of a step while the next one computes."""
    wait_for_batches: bool = False
    """Wait until all batches to be read ahead are there, so that results do not depend on how fast they come. Not for
    live streams: their last batch would wait for the next one."""

    def __post_init__(self) -> None:
        require_at_least(self, 0, "prefetch")


class _Waiting:
    """A batch before its turn, and its read if one is under way."""

    __slots__ = ("read", "turn")

    def __init__(self, turn: BatchTurn) -> None:
        self.turn = turn
        self.read: Future[None] | None = None


class TablePipeline:
    """Orders reads and updates of the tables of one session. The thread that trains owns it.

    Args:
        settings: How far ahead and behind.
    """

    def __init__(self, settings: PipelineConfig) -> None:
        self._settings = settings
        self._executor: ThreadPoolExecutor | None = None
        if settings.prefetch or settings.postpush:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="session/tables")
        self._window: deque[_Waiting] = deque()
        self._postponed: Sequence[GradientStep] = ()
        self._push: Future[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no batch is read ahead, so that the next one has to be waited for."""
        return not self._window

    def next_batch(self, feed: BatchFeed) -> BatchTurn:
        """The batch whose turn it is, its rows read where that was to be done ahead.

        Raises:
            OutOfRangeError: there are no more.
        """
        if self._executor is None:
            return feed.take()
        self._fill(feed, self._executor)
        first = self._window.popleft()
        self._start_push()
        if first.read is not None:
            try:
                first.read.result()
            except BaseException:
                first.turn.drop()
                raise
        return first.turn

    def begin_step(self) -> None:
        """For a batch that did not come through `next_batch`: starts what the step before has postponed."""
        self._start_push()

    def push(self, steps: Sequence[GradientStep]) -> None:
        """Applies the gradients of a step: now, or beside the next one."""
        if self._executor is None:
            _apply(steps)
        elif self._settings.postpush:
            self._postponed = steps
        else:
            self._executor.submit(_apply, steps).result()

    def wait_for_push(self) -> None:
        """Waits for what the step before has postponed; its error is raised here, once."""
        push, self._push = self._push, None
        if push is not None:
            push.result()

    def settle(self) -> None:
        """Applies everything, and forgets rows that were read ahead: they will be read again when needed."""
        self._start_push()
        self.wait_for_push()
        for waiting in self._window:
            if waiting.read is not None:
                waiting.read.result()
                waiting.read = None

    def close(self) -> None:
        """Drops what was read ahead and not trained, and what was postponed. Further calls do nothing."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)
        while self._window:
            self._window.popleft().turn.drop()
        self._postponed, self._push = (), None

    def _fill(self, feed: BatchFeed, executor: ThreadPoolExecutor) -> None:
        for waiting in self._window:
            if waiting.read is None:
                waiting.read = executor.submit(waiting.turn.read_ahead)
        while len(self._window) <= self._settings.prefetch:
            must_wait = not self._window or self._settings.wait_for_batches
            try:
                turn = feed.take() if must_wait else feed.take_if_there()
            except BaseException:
                if not self._window:
                    raise
                return  # it is raised again when the batches before it are trained
            if turn is None:
                return
            waiting = _Waiting(turn)
            waiting.read = executor.submit(turn.read_ahead)
            self._window.append(waiting)

    def _start_push(self) -> None:
        if self._postponed and self._executor is not None:
            steps, self._postponed = self._postponed, ()
            self._push = self._executor.submit(_apply, steps)


def _apply(steps: Sequence[GradientStep]) -> None:
    for step in steps:
        step.apply()
