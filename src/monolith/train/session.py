"""`Session`: a task that runs, with its model, its state and its hooks."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Self

from monolith.checkpoint import TrainState
from monolith.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from monolith.hooks import close_session, open_session
from monolith.nn import BatchContext
from monolith.optim import global_step_from
from monolith.tables import BatchStamp
from monolith.train._dense_step import DenseConfig, require_servers
from monolith.train._hook_calls import HookCalls
from monolith.train._model_step import ModelStep
from monolith.train._session_parts import DenseAveraged, build_parts, embeddings_of, open_dense, require_training
from monolith.train._table_pipeline import PipelineConfig, RankPipeline, TablePipeline
from monolith.train.batch_time import REQUEST_TIME, BatchClock, time_of
from monolith.train.collections import Collections
from monolith.train.compat.refusal import require_effective_parameters
from monolith.train.context import TaskContext
from monolith.train.input.feed import BatchFeed
from monolith.train.job_part import steps_of_others
from monolith.train.saving.resuming import OwnerProgress
from monolith.train.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from monolith.hook import Call, Hook
    from monolith.ps.dense import DenseServers
    from monolith.train.device_placement import DevicePlacement
    from monolith.train.history import History
    from monolith.train.job_part import JobPart
    from monolith.train.rank_part import RankPart
    from monolith.train.step_result import StepResult
    from monolith.train.task import Mode

_log = logging.getLogger(__name__)

_UNKNOWN = -1
"""Number of the next batch before it was requested."""


class SessionState(TrainState):
    """The state of a session: a cut of it first waits for operations in flight."""

    session: Session | None = None
    """The one that it is open in."""
    history: History | None = None
    """Measurements of the last call of `Trainer.train`; None if the session was run without a trainer."""

    def settle(self) -> None:
        """Applies postponed updates, and discards rows that were read ahead."""
        if self.session is not None:
            self.session.settle()


class Session:
    """Runs a task step by step, with hooks. One thread runs steps; any thread may call `request_stop`.

    Args:
        task: The task to run.
        mode: ``train`` changes weights and rows; ``eval`` and ``predict`` change nothing.
        hooks: Hooks, called in this order.
        model_dir: Directory in which hooks read and write files.
        restore: Called with the new state before hooks see the session, such as ``Saver.restore``.
        state: A state to continue with, instead of one that is built from the task.
        pipeline: How far tables and model may be apart.
        worker_index: Which worker this is.
        deterministic: Takes time only from the data and starts with a fixed seed, so that runs are reproducible.
        servers: Servers that store and update the dense weights; None: this process. Only for training.
        dense: Which operations overlap with a step if servers store the dense weights.
        job: The part of this process in a job; its servers keep rows and dense weights.
        placement: The device of the dense part; None: the modules stay where the task puts them, and batches are not
            moved.
        ranks: The part of this process in a synchronous run; its ranks share the rows. Only for training.

    >>> from monolith.testing import ExampleTask
    >>> task = ExampleTask()
    >>> with Session(task) as session:
    ...     for batch in task.input_fn("train"):
    ...         result = session.run(batch)
    >>> session.global_step, result.num_examples
    (20, 32)
    """

    def __init__(  # noqa: PLR0913 - a session is where everything meets; all by name
        self,
        task: Task,
        *,
        mode: Mode = "train",
        hooks: Sequence[Hook] = (),
        model_dir: str | None = None,
        restore: Callable[[TrainState], Any] | None = None,
        state: SessionState | None = None,
        pipeline: PipelineConfig | None = None,
        worker_index: int = 0,
        deterministic: bool = False,
        servers: DenseServers | None = None,
        dense: DenseConfig | None = None,
        job: JobPart | None = None,
        placement: DevicePlacement | None = None,
        ranks: RankPart | None = None,
    ) -> None:
        if mode not in {"train", "eval", "predict"}:
            raise InvalidArgumentError(f"session: mode must be train, eval or predict, got {mode!r}")
        require_effective_parameters(task.p, Task.params())
        require_training(mode, servers)
        self._dense_settings = DenseConfig() if dense is None else dense
        require_servers(self._dense_settings, servers)
        self.task = task
        self.mode: Mode = mode
        self.model_dir = model_dir
        self.collections = Collections()
        """Values that parts of the model share; of steps, those of the last one."""
        self.last: StepResult | None = None
        """The step that ran last."""
        self._calls = HookCalls(hooks)
        self._restore = restore
        self._given_state = state
        self._settings = PipelineConfig() if pipeline is None or mode != "train" else pipeline
        self._worker_index = worker_index
        self._deterministic = deterministic
        self._servers = servers
        self._job = job
        self._placement = placement
        self._ranks = ranks if mode == "train" else None
        self._stop_requested = False
        self._state: SessionState | None = None
        self._closing = contextlib.ExitStack()
        self._context = contextlib.ExitStack()
        self.step_lock = threading.RLock()
        """Held while the session works on a step, hooks included; the holder may read or save the state."""

    # What hooks rely on

    @property
    def state(self) -> SessionState:
        """Model, optimizers, step and positions: what a checkpoint holds."""
        if self._state is None:
            raise FailedPreconditionError("session: it has no state before it is entered; write `with Session(...)`")
        return self._state

    @property
    def global_step(self) -> int:
        """Number of steps that were trained."""
        return 0 if self._state is None else self._state.global_step

    @property
    def stop_requested(self) -> bool:
        """Returns whether the current step is the last one."""
        if self._stop_requested or (self._ranks is not None and self._ranks.stops):
            return True
        return self._job is not None and self._job.wants_to_stop

    def request_stop(self) -> None:
        """Ends the run after the current step; with several ranks, after the step in which all ranks agree to stop."""
        if self._ranks is None:
            self._stop_requested = True
        else:
            self._ranks.ask_to_stop()

    def stop_together(self) -> None:
        """Ends the run after the step that runs now: every rank calls it at the same step."""
        self._stop_requested = True

    def on_close(self, close: Call) -> None:
        """Has `close` called when the session closes or is rebuilt; the last one given comes first."""
        self._closing.callback(close)

    @property
    def is_whole(self) -> bool:
        """Returns whether the state is consistent (no partially applied step), and so worth saving."""
        return self._state is not None and self._step.is_whole and self._pipeline.is_whole

    # Steps

    def run(self, batch: Any, position: bytes | None = None) -> StepResult:
        """Runs one step with all hooks.

        Args:
            batch: Argument for the task's `model_fn`.
            position: Position of the input after this batch; saved with the next checkpoint.
        """
        with self.step_lock:
            batch_context = self._make_context(batch, position)
            if self.mode == "train":
                self._pipeline.begin_step()
            return self._around(batch_context)

    def run_next(self, feed: BatchFeed) -> StepResult | None:
        """Runs one step on the next batch of a feed made by `feed`; without a batch, follows the other ranks.

        Raises:
            OutOfRangeError: the input has ended; with several ranks, on all of them.
        """
        if self._pipeline.is_empty and (self._ranks is None or self._ranks.is_alone):
            feed.wait()  # outside the lock, so that a stalled input does not block checkpoints
        with self.step_lock:
            batch_context = self._pipeline.next_batch(feed)
            return self._around(batch_context) if batch_context is not None else self._calls.around(self._follow, self)

    @contextlib.contextmanager
    def feed(self, source: Any, *, when_empty: Callable[[], None] = lambda: None) -> Iterator[BatchFeed]:
        """Yields the batches of an input from the position in the state, prefetched as far as the pipeline needs.

        Args:
            source: A `Dataset`, or anything that can be iterated.
            when_empty: Called, in any thread, if the input has no batch although it was read from its beginning.
        """
        if self.mode == "train" and self._job is not None and self._next_batch == _UNKNOWN:
            self._begin_batches()  # servers return the position from which this worker resumes
        if isinstance(self._pipeline, RankPipeline):
            self._pipeline.begin_input()
        feed = BatchFeed(
            source,
            position=self._position() if self.mode == "train" else None,
            make_context=self._make_planned_context if self._is_ahead else self._make_context,
            ahead=self._settings.prefetch,
            when_empty=when_empty,
        )
        try:
            yield feed
        finally:
            feed.close()

    def settle(self) -> None:
        """Applies every update in flight to the state, as before a cut. Call it between two steps."""
        if self.mode == "train":
            self._calls.finish_pushes(self)
            self._pipeline.settle()
            self._dense.settle()
            if self._job is not None:
                self._job.settled()

    @property
    def worker_index(self) -> int:
        """Index of the worker whose input it trains: its own, or that of a lost worker."""
        return self._worker_index

    def take_worker(self, number: int) -> None:
        """Continues as another worker of the job: the next feed reads that worker's input, from its position."""
        self.settle()
        self.be_worker(number)

    def be_worker(self, number: int) -> None:
        """Sets the worker of a session that is about to be rebuilt."""
        self._worker_index = number
        self._next_batch = _UNKNOWN

    # Lifecycle

    def __enter__(self) -> Self:
        if self._state is not None:
            raise FailedPreconditionError("session: it is open already")
        with contextlib.ExitStack() as undone:
            open_session(self)
            undone.callback(close_session, self)
            undone.enter_context(global_step_from(lambda: self.global_step))
            undone.callback(self._calls.close)
            self._calls.begin()
            undone.callback(self._discard)
            self._create()
            self._context = undone.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self.step_lock, self._context:
            if kind is None:
                self.settle()
                self._calls.end(self)

    def rebuild(self) -> None:
        """Restarts in place, as after a failure of another process: builds and restores modules, and notifies hooks."""
        if self._given_state is not None:
            raise FailedPreconditionError("session: one that was given its state cannot make it again")
        with self.step_lock:
            self._discard()
            self._create()

    # Inside

    @property
    def _is_ahead(self) -> bool:
        return self.mode == "train" and bool(self._settings.prefetch or self._settings.postpush)

    def _create(self) -> None:
        self._closing = contextlib.ExitStack()
        self.collections = Collections()
        self._pipeline = self._open_pipeline()
        self._closing.callback(self._pipeline.close)
        self._state = self._build() if self._given_state is None else self._given_state
        self._state.session = self
        if self._ranks is not None:
            self._ranks.attach(self._state)
        self._dense = open_dense(
            self._state, self._servers, self._ranks, self._dense_settings, on_close=self._closing.callback
        )
        if self._restore is not None:
            self._restore(self._state)
        if self._state.model is not None:
            self._state.model.train(self.mode == "train")
        self._step = ModelStep(
            self.task, self._state, self._pipeline, self._dense, count=None if self._job is None else self._count
        )
        self._embeddings = embeddings_of(self._state)
        if isinstance(self._pipeline, RankPipeline):
            self._pipeline.attach(self._embeddings)
        self._next_batch = _UNKNOWN  # requested with the first batch, as hooks may restore, too
        self._clock = BatchClock()
        if self._job is not None:
            self._job.count_by(steps_of_others(self._state))
        self._calls.after_create_session(self, self.task.ctx.async_function_mgr.hooks)

    def _open_pipeline(self) -> TablePipeline:
        if self._ranks is None or self._ranks.is_alone:
            return TablePipeline(self._settings)
        return RankPipeline(self._settings, self._ranks)

    def _discard(self) -> None:
        """Releases the resources of this incarnation."""
        closing, self._closing = self._closing, contextlib.ExitStack()
        closing.close()
        if self._state is not None:
            self._state.session = None

    def _build(self) -> SessionState:
        # Functions that build() makes asynchronous belong to this one.
        self.task.ctx = TaskContext(self.task.ctx.input, training=self.task.ctx.training)
        together = self._job if self._job is not None else self._ranks
        stores = None if together is None else together.new_store_factory()
        return SessionState(
            **build_parts(self.task, stores, placement=self._placement, deterministic=self._deterministic)
        )

    def _follow(self) -> None:
        """Follows the step of the other ranks, without a batch.

        Raises:
            OutOfRangeError: no rank has a batch.
        """
        self.collections.begin_step()
        self.last = None
        assert isinstance(self._dense, DenseAveraged)  # noqa: S101 - ranks have no other
        assert isinstance(self._pipeline, RankPipeline)  # noqa: S101 - the same
        update = self._dense.follow(self._step.weights)
        if update is None:
            raise OutOfRangeError("no rank has more batches")
        self._step.follow(update.reached)
        self._pipeline.push_nothing(update.num_pushes, update.reached - 1)
        self.collections.end_step()

    def _around(self, batch_context: BatchContext) -> StepResult:
        """Runs a step on a batch with its hooks, which read its values from the collections."""
        self.collections.begin_step()
        if batch_context.time:  # 0: unknown, in a deterministic run
            self.collections.add(REQUEST_TIME, batch_context.time)
        return self._calls.around(lambda: self._run(batch_context), self)

    def _run(self, batch_context: BatchContext) -> StepResult:
        if self.mode == "train":
            self.last = self._step.train(batch_context)
        else:
            self.last = self._step.look(batch_context, self.mode)
            if self._placement is not None:
                self._placement.bring_back(self.last)
        self.collections.end_step()
        return self.last

    def _position(self) -> bytes | None:
        """Returns the position from which the input continues."""
        own = self.state.position(self._worker_index)
        inputs = None if self._ranks is None else self._ranks.inputs
        return own if inputs is None else inputs.position(self._worker_index, own)

    def _make_context(self, batch: Any, position: bytes | None) -> BatchContext:
        if self._next_batch == _UNKNOWN:
            self._begin_batches()
        last = self.state.applied.get(self._worker_index)
        time = self._clock.time_of(batch) if self.mode == "train" else time_of(batch)
        if time is None and self._deterministic:
            time = 0
        if position is None:  # an input without positions: keep the last one
            position = b"" if last is None else last.position
        stamp = BatchStamp(
            worker=self._worker_index,
            seq=self._next_batch,
            position=position,
            event_time_ms=1000 * self._clock.newest,
        )
        self._next_batch += self.mode == "train"
        if self._placement is None:
            return BatchContext(batch, time=time, stamp=stamp)
        staged = self._placement.stage(
            batch, host=[name for embeddings in self._embeddings for name in embeddings.slots]
        )
        return BatchContext(staged.features, time=time, stamp=stamp, begin=staged.receive)

    def _begin_batches(self) -> None:
        """Makes this session the one that trains the rows as its worker, from its first batch on."""
        last = self.state.applied.get(self._worker_index)
        self._next_batch = 0 if last is None else last.seq + 1
        if self.mode == "train" and self._job is not None:
            resumed = self._job.resume(self._worker_index, self._join_servers())
            self._next_batch, last = resumed.next_seq, resumed.behind
            self.state.applied.pop(self._worker_index, None)
            if last is not None:
                self.state.applied[self._worker_index] = last
        elif self.mode == "train":
            for embeddings in self._embeddings:
                embeddings.join(self._worker_index)
            dense = [stamp.seq + 1 for stamp in self._dense.join(self._worker_index).values() if stamp]
            self._next_batch = max(
                [self._next_batch, *dense, *(embeddings.next_batch for embeddings in self._embeddings)]
            )
        self._clock = BatchClock(0 if last is None else last.event_time)

    def _join_servers(self) -> list[OwnerProgress]:
        """Joins at every server, of every store and of the dense weights; what each of them has."""
        rows = [embeddings.join(self._worker_index).applied_by_server for embeddings in self._embeddings]
        known = [OwnerProgress(server, stamp) for stamps in rows for server, stamp in enumerate(stamps)]
        dense = self._dense.join(self._worker_index)
        return known + [OwnerProgress(server, stamp, is_dense=True) for server, stamp in dense.items()]

    def _count(self, stamp: BatchStamp) -> int:
        """Returns the global step of the job after the step of a batch."""
        assert self._job is not None  # noqa: S101 - only called in a job
        return self._job.count(stamp, under_way=max(self._pipeline.under_way, self._dense.under_way))

    def _make_planned_context(self, batch: Any, position: bytes | None) -> BatchContext:
        batch_context = self._make_context(batch, position)
        for embeddings in self._embeddings:
            batch_context.plan(embeddings)
        return batch_context
