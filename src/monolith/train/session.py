"""`Session`: a task that runs, with its model, its state and its hooks."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from typing import TYPE_CHECKING, Any, Self

from monolith.config import keywords_of
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.hook import Collections, HookCalls
from monolith.hooks import REQUEST_TIME, close_session, get_current_session, open_session
from monolith.optim import global_step_from
from monolith.train._dense_step import DenseConfig
from monolith.train._model_step import ModelStep
from monolith.train._session_parts import SessionConfig, SessionState, build_parts, embeddings_of, store_factory_of
from monolith.train._table_pipeline import PipelineConfig
from monolith.train.compat.refusal import require_effective_parameters
from monolith.train.context import TaskContext
from monolith.train.device_placement import require_gpu_tables
from monolith.train.input.feed import BatchContexts, BatchFeed
from monolith.train.saving.resuming import OwnerProgress
from monolith.train.strategies.single import SingleProcess
from monolith.train.strategies.strategy import Strategy
from monolith.train.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from monolith.hook import Call
    from monolith.nn import BatchContext
    from monolith.train._model_step import StepResult
    from monolith.train.task import Mode

_log = logging.getLogger(__name__)


class Session:
    """Runs a task step by step, with hooks. One thread runs steps; any thread may call `request_stop`.

    Args:
        task: The task to run.
        options: The fields of `SessionConfig`, by name.

    >>> from monolith.testing import ExampleTask
    >>> task = ExampleTask()
    >>> with Session(task) as session:
    ...     for batch in task.input_fn("train"):
    ...         result = session.run(batch)
    >>> session.global_step, result.num_examples
    (20, 32)
    """

    @keywords_of(SessionConfig)
    def __init__(self, task: Task, options: SessionConfig) -> None:
        if options.mode not in {"train", "eval", "predict"}:
            raise InvalidArgumentError(f"session: mode must be train, eval or predict, got {options.mode!r}")
        require_effective_parameters(task.p, Task.params())
        if options.mode == "train":
            require_gpu_tables(task.p, options.placement)
        self._dense_settings = DenseConfig() if options.dense is None else options.dense
        self._strategy = _strategy_of(options)
        if not isinstance(self._strategy, Strategy):
            raise TypeError(f"session: strategy must be an object such as SingleProcess(), got {options.strategy!r}")
        self._strategy.require_session(options.mode, self._dense_settings)
        self.task = task
        self.mode: Mode = options.mode
        self.model_dir = options.model_dir
        self.collections = Collections()
        """Values that parts of the model share; of steps, those of the last one."""
        self.last: StepResult | None = None
        """The step that ran last."""
        self._calls = HookCalls(options.hooks)
        self._restore = options.restore
        self._given_state = options.state
        pipeline = options.pipeline if self.mode == "train" else None
        self._settings = PipelineConfig() if pipeline is None else pipeline
        self._worker_index = options.worker_index
        self._deterministic = options.deterministic
        self._placement = options.placement
        self._contexts = BatchContexts(
            is_training=self.mode == "train", is_deterministic=options.deterministic, placement=options.placement
        )
        self._has_begun = False
        """Whether the number of the next batch is known. Found with the first batch, as hooks may restore, too."""
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
        return self._stop_requested or self._strategy.stop_requested

    def request_stop(self) -> None:
        """Ends the run after the current step; with several ranks, after the step in which all ranks agree to stop."""
        self._strategy.request_stop(self.stop_together)

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
            self._begin_batches()
            batch_context = self._contexts.make(batch, position)
            if self.mode == "train":
                self._pipeline.begin_step()
            return self._step_on(batch_context)

    def run_next(self, feed: BatchFeed) -> StepResult | None:
        """Runs one step on the next batch of a feed made by `feed`; without a batch, follows the other ranks.

        Raises:
            OutOfRangeError: the input has ended; with several ranks, on all of them.
        """
        self._begin_batches()
        if self._pipeline.needs_batch:
            feed.wait()  # outside the lock, so that a stalled input does not block checkpoints
        with self.step_lock:
            batch_context = self._pipeline.next_batch(feed)
            if batch_context is not None:
                return self._step_on(batch_context)
            self._follow()
            return None

    @contextlib.contextmanager
    def feed(self, source: Any, *, when_empty: Callable[[], None] = lambda: None) -> Iterator[BatchFeed]:
        """Yields the batches of an input from the position in the state, prefetched as far as the pipeline needs.

        Args:
            source: A `Dataset`, or anything that can be iterated.
            when_empty: Called, in any thread, if the input has no batch although it was read from its beginning.
        """
        self._begin_batches()  # servers return the position from which this worker resumes
        self._pipeline.begin_input()
        position: bytes | None = None
        if self.mode == "train":
            position = self._strategy.input_position(self._worker_index, self.state.position(self._worker_index))
        is_ahead = self.mode == "train" and (self._settings.prefetch or self._settings.postpush)
        feed = BatchFeed(
            source,
            position=position,
            make_context=self._contexts.make_planned if is_ahead else self._contexts.make,
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
            self._strategy.settled()

    @property
    def worker_index(self) -> int:
        """Index of the worker whose input it trains: its own, or that of a lost worker."""
        return self._worker_index

    def adopt_worker(self, number: int) -> None:
        """Continues as another worker of the job: the next feed reads that worker's input, from its position."""
        self.settle()
        self.set_worker(number)

    def set_worker(self, number: int) -> None:
        """Sets the worker of a session that is about to be rebuilt."""
        self._worker_index = number
        self._has_begun = False

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

    def _create(self) -> None:
        self._closing = contextlib.ExitStack()
        self.collections = Collections()
        strategy = self._strategy
        self._pipeline = strategy.open_pipeline(self._settings)
        self._closing.callback(self._pipeline.close)
        self._state = self._build() if self._given_state is None else self._given_state
        self._state.session = self
        self._dense = strategy.open_dense(self._state, self._dense_settings, on_close=self._closing.callback)
        strategy.attach(self._state)
        if self._restore is not None:
            self._restore(self._state)
        if self._state.model is not None:
            self._state.model.train(self.mode == "train")
        self._step = ModelStep(self.task, self._state, self._pipeline, self._dense, strategy=strategy)
        self._embeddings = embeddings_of(self._state)
        self._pipeline.attach(self._embeddings)
        self._has_begun = False
        self._calls.after_create_session(self, self.task.ctx.async_function_mgr.hooks)

    def _discard(self) -> None:
        """Releases the resources of this incarnation."""
        closing, self._closing = self._closing, contextlib.ExitStack()
        closing.close()
        if self._state is not None:
            self._state.session = None

    def _build(self) -> SessionState:
        # Functions that build() makes asynchronous belong to this one.
        self.task.ctx = TaskContext(self.task.ctx.input, training=self.task.ctx.training)
        stores = store_factory_of(self._strategy, self._placement)
        return SessionState(
            **build_parts(self.task, stores, placement=self._placement, deterministic=self._deterministic)
        )

    def _step_on(self, batch_context: BatchContext) -> StepResult:
        """Runs a step on a batch with its hooks, which read its values from the collections."""
        self.collections.begin_step()
        if batch_context.time:  # 0: unknown, in a deterministic run
            self.collections.add(REQUEST_TIME, batch_context.time)
        with self._calls.around(self):
            if self.mode == "train":
                result = self._step.train(batch_context)
            else:
                result = self._step.look(batch_context, self.mode)
                if self._placement is not None:
                    self._placement.to_host(result)
            self.last = result
            self.collections.end_step()
        return result

    def _follow(self) -> None:
        """Follows the step of the other ranks with its hooks, without a batch.

        Raises:
            OutOfRangeError: no rank has a batch.
        """
        with self._calls.around(self):
            self.collections.begin_step()
            self.last = None
            self._step.follow()
            self.collections.end_step()

    def _begin_batches(self) -> None:
        """Makes this session the one that trains the rows as its worker, before its first batch."""
        if self._has_begun:
            return
        worker, last = self._worker_index, self.state.applied.get(self._worker_index)
        next_batch = 0 if last is None else last.seq + 1
        if self.mode == "train":
            known = self._join_owners()
            by_rows = max((embeddings.next_batch for embeddings in self._embeddings), default=0)
            resumed = self._strategy.resume(worker, last, known, next_batch=by_rows)
            if resumed.behind is not last:
                self.state.applied.pop(worker, None)
                if resumed.behind is not None:
                    self.state.applied[worker] = resumed.behind
            next_batch, last = resumed.next_seq, resumed.behind
        newest = 0 if last is None else last.event_time
        self._contexts.begin(self.state, worker, next_batch=next_batch, newest=newest)
        self._has_begun = True

    def _join_owners(self) -> list[OwnerProgress]:
        """Joins at every owner, of every store and of the dense weights; returns what each of them has."""
        rows = [embeddings.join(self._worker_index).applied_by_server for embeddings in self._embeddings]
        known = [OwnerProgress(owner, stamp) for stamps in rows for owner, stamp in enumerate(stamps)]
        dense = self._dense.join(self._worker_index)
        return known + [OwnerProgress(server, stamp, is_dense=True) for server, stamp in dense.items()]


def _strategy_of(options: SessionConfig) -> Strategy:
    if options.servers is None:
        return SingleProcess() if options.strategy is None else options.strategy
    if options.strategy is not None:
        raise InvalidArgumentError("session: servers and strategy are both given; give strategy=SingleProcess(servers)")
    warnings.warn(
        "Session(servers=...) is deprecated and will be removed in the next version: use"
        " strategy=SingleProcess(servers)",
        DeprecationWarning,
        stacklevel=4,
    )
    return SingleProcess(options.servers)


def add_to_collections(names: str | Sequence[str], value: Any) -> None:
    """Adds a value by `Collections.add` of the current session.

    Raises:
        FailedPreconditionError: no session is open.
    """
    _current().add(names, value)


def get_collection(name: str) -> list[Any] | None:
    """Returns `Collections.get` of the current session.

    Raises:
        FailedPreconditionError: no session is open.
    """
    return _current().get(name)


def _current() -> Collections:
    session = get_current_session()
    if session is None:
        raise FailedPreconditionError(
            "collections: no session is open; call this inside `with Session(...)`, or use its collections"
        )
    collections: Collections = session.collections
    return collections
