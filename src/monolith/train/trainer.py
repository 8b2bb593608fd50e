"""`Trainer`: trains, evaluates, predicts and exports a task; a `Session` in a loop, with saving and recovery."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, overload

from monolith.checkpoint import SaverConfig, keep_best, prefix_of
from monolith.clock import SystemClock
from monolith.export import ExportConfig
from monolith.files import join
from monolith.hooks import Evaluation, SetCurrentSessionHook
from monolith.nn import TableDefaults, use_table_defaults
from monolith.observe import use_metric_name
from monolith.train._run_hooks import (
    StopAtStep,
    chief_hooks,
    eviction_hooks,
    marker_hooks,
    progress_hooks,
    publishing_hooks,
    record_hooks,
    report_hooks,
    save_if_due,
)
from monolith.train._training_loop import TrainingLoop
from monolith.train.compat.refusal import require_effective_parameters
from monolith.train.config.trainer_config import TrainerConfig, require_training
from monolith.train.context import Context, TaskContext, use_context
from monolith.train.device_placement import placement_of, with_gpu_tables
from monolith.train.export.exporting import CheckpointExporter, copied_task, export_session
from monolith.train.export.exports_of_run import ExportSaverListener, ExportsOfRun
from monolith.train.export.two_stage import ITEM_CACHE, TWO_STAGE, cache_items, export_two_stage, write_item_cache
from monolith.train.history import History
from monolith.train.input.shares import InputShares
from monolith.train.predict.prediction import run_batches, write_predictions
from monolith.train.saving.restoring import restore_to_look
from monolith.train.session import Session
from monolith.train.strategies.ranks import Ranks, with_accelerator
from monolith.train.strategies.single import SingleProcess
from monolith.train.strategies.strategy import Strategy
from monolith.train.task import Task
from monolith.train.task_wrappers import FeatureEngineeringTask, FeatureFiles

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from monolith.checkpoint import Saver, TrainState
    from monolith.clock import Clock
    from monolith.hook import Hook
    from monolith.hooks import SaverListener
    from monolith.ps.client import PsCluster
    from monolith.ps.dense import DenseServers
    from monolith.train._session_parts import SessionState
    from monolith.train.parameters.params import Params
    from monolith.train.predict.candidate_items import CandidateItems
    from monolith.train.task import Mode


class Trainer:
    """Runs a task from its input to its checkpoints. Not thread-safe.

    Training resumes from the checkpoint in the model directory; the same call continues a run that was killed. Hooks
    run around each step in the order of ``docs/how-to/train.md``.

    Args:
        task: The task, its class, or its parameters.
        config: Config of the run.
        hooks: Attached to each training session.
        clock: Measures waits.
        strategy: How this process trains with others; None: as `Ranks` if the config has ``sync``, else alone.
        servers: Deprecated: give ``strategy=SingleProcess(servers)``.
        row_servers: Deprecated: give ``strategy=Ranks(row_servers)``.

    >>> from monolith.testing import ExampleTask
    >>> trainer = Trainer(ExampleTask())
    >>> trainer.train(steps=5).global_step, trainer.train(steps=5).global_step
    (5, 10)
    >>> sorted(trainer.evaluate(steps=2))
    ['auc', 'examples', 'global_step', 'loss']
    """

    def __init__(
        self,
        task: Task | type[Task] | Params,
        config: TrainerConfig | None = None,
        *,
        hooks: Sequence[Hook] = (),
        clock: Clock | None = None,
        strategy: Strategy | None = None,
        servers: DenseServers | None = None,
        row_servers: PsCluster | None = None,
    ) -> None:
        self.task = _task_of(task)
        config = with_accelerator(TrainerConfig() if config is None else config, self.task.p)
        self.config = with_gpu_tables(config, self.task.p)
        if servers is not None or row_servers is not None:
            strategy = _former_strategy(strategy, servers, row_servers)
        self._strategy = self._default_strategy() if strategy is None else strategy
        if not isinstance(self._strategy, Strategy):
            raise TypeError(f"Trainer: strategy must be an object such as Ranks() or SingleProcess(), got {strategy!r}")
        self._strategy.require_config(self.config)
        self._strategy.require_session("train", self.config.dense)
        self._placement = placement_of(self.config.device)
        self._hooks = tuple(hooks)
        self._clock = SystemClock() if clock is None else clock
        self._running: Session | None = None
        self._state: SessionState | None = None
        shares = InputShares(worker=self.config.worker_index, num_workers=self.config.num_workers)
        self.task.ctx = TaskContext(self.config.input, training=shares)
        if self.config.only_feature_engineering and self.config.model_dir is not None:
            files = FeatureFiles(self.config.model_dir, self.config.worker_index)
            self.task = FeatureEngineeringTask(self.task, files)
        self.global_step = 0
        """Global step of a trained state that was released; otherwise `state` has it."""
        self.history = History()
        """Measurements of the last call of `train`, even if an error ended it."""

    @property
    def state(self) -> SessionState | None:
        """The last trained or restored state; None before that."""
        return self._state

    def release_state(self) -> None:
        """Evaluates and predicts from the last checkpoint from now on: what was trained is with servers that end."""
        self.global_step = self.global_step if self._state is None else self._state.global_step
        self._state, self._strategy = None, self._default_strategy()

    def forget_state(self) -> None:
        """Calls `release_state`. Deprecated."""
        _warn("Trainer.forget_state()", "release_state()")
        self.release_state()

    def request_stop(self) -> None:
        """Ends training after the step that runs now, on all ranks of a synchronous run; any thread may ask."""
        if self._running is not None:
            self._running.request_stop()

    # What it does

    def train(
        self, *, steps: int | None = None, max_steps: int | None = None, hooks: Sequence[Hook] = ()
    ) -> SessionState:
        """Trains to the end of the data, or of `steps` more steps, or until the global step is `max_steps`.

        Args:
            steps: Number of further steps; None: from the task's parameters.
            max_steps: The last global step; None: from the task's parameters.
            hooks: Attached after those of the trainer.

        Returns:
            The trained state: the model and everything else that a checkpoint holds, with the ``history`` of this call
            (loss, metrics, learning rates and table sizes by step, and how it ended).

        Raises:
            ValueError: the config's mode is not ``train``.
            BaseException: what ended training. The state of the last complete step was saved before, if there was one.
        """
        require_training(self.config.mode, "Trainer.train")
        stop = StopAtStep(
            steps=self.task.p.train.steps if steps is None else steps,
            max_steps=self.task.p.train.max_steps if max_steps is None else max_steps,
        )
        self.history = History()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._surroundings())
            strategy = self._strategy
            self.config = strategy.join(self.config)
            self.task.ctx = TaskContext(self.config.input, training=self._shares())
            bar = stack.enter_context(progress_hooks(self.config, stop, (*self._hooks, *hooks)))
            saver = strategy.open_saver() if self.task.is_saved else None
            if saver is not None:
                stack.callback(saver.close)
                self._state = None  # the checkpoint has it; two copies of the tables would not fit
            attached = self._training_hooks(saver, (*hooks, stop, *bar))
            self._running = session = self._training_session(saver, attached)
            stack.callback(setattr, self, "_running", None)
            with session:
                loop = TrainingLoop(
                    self.task,
                    session,
                    saver,
                    strategy=strategy,
                    history=self.history,
                    clock=self._clock,
                    while_waiting=lambda: save_if_due(session, attached),
                )
                loop.run()
            self._state = session.state
            self._state.history = self.history
            if self.config.items is not None and self.config.worker_index == 0:
                self._predict_items(self.config.items)
            return self._state

    def evaluate(self, *, steps: int | None = None, hooks: Sequence[Hook] = ()) -> dict[str, float]:
        """Returns means over the evaluation input: loss, AUC for labels 0 and 1, examples. Inserts and saves nothing.

        Args:
            steps: Maximum number of batches; None: from the task's parameters, else all.
            hooks: Attached to the session.

        Returns:
            Name -> value, with the global step of what was evaluated. Its checkpoint is kept if it is the best one by
            `SavingConfig.best_metric`.
        """
        limit = self._eval_steps if steps is None else steps
        evaluation = Evaluation()
        with self._inference_session("eval", hooks) as session:
            for _ in run_batches(session, self.task.input_fn("eval"), limit):
                evaluation.add(session.last)
            means = evaluation.means() | {"global_step": session.global_step}
        saving = self.config.saving
        if saving.best_metric is not None and self.config.model_dir is not None:
            checkpoint = prefix_of(SaverConfig().basename, session.global_step)
            keep_best(
                self.config.model_dir, means, checkpoint=checkpoint, metric=saving.best_metric, mode=saving.best_mode
            )
        return means

    @overload
    def predict(self, *, steps: int | None = None, hooks: Sequence[Hook] = ()) -> Iterator[Any]: ...

    @overload
    def predict(self, batch: Any, *, hooks: Sequence[Hook] = ()) -> Any: ...

    def predict(self, batch: Any = None, *, steps: int | None = None, hooks: Sequence[Hook] = ()) -> Any:
        """Returns the predictions for one batch, or an iterator over those of each batch of the task's input.

        Args:
            batch: Argument for the task's `model_fn`; None: the input for mode ``predict``.
            steps: Maximum number of batches of the input.
            hooks: Attached to the session.

        Returns:
            Predictions as the task makes them.
        """
        if batch is None:
            return self._predictions(steps, hooks)
        if steps is not None:
            raise ValueError(
                f"Trainer.predict: steps counts batches of the input, got {steps} together with a batch; remove one"
            )
        with self._inference_session("predict", hooks) as session:
            return session.run(batch).predictions

    def write_predictions(
        self,
        path: str | os.PathLike[str],
        *,
        keys: Sequence[str] = (),
        steps: int | None = None,
        hooks: Sequence[Hook] = (),
    ) -> int:
        """Writes the predictions for the task's input to a file. The write is atomic.

        Args:
            path: Ends in ``.parquet``, ``.csv`` or ``.jsonl``; a file of this name is replaced.
            keys: Columns of the batches to write next to the predictions.
            steps: Maximum number of batches.
            hooks: Attached to the session.

        Returns:
            Number of rows. A column is named after its prediction, or ``prediction`` if the task has only one.
        """
        with self._inference_session("predict", hooks) as session:
            return write_predictions(session, self.task.input_fn("predict"), path, keys=keys, limit=steps)

    def _predictions(self, steps: int | None, hooks: Sequence[Hook]) -> Iterator[Any]:
        with self._inference_session("predict", hooks) as session:
            for _ in run_batches(session, self.task.input_fn("predict"), steps):
                yield None if session.last is None else session.last.predictions

    def inference_session(self) -> contextlib.AbstractContextManager[Session]:
        """Returns a read-only session in mode ``predict`` on this trainer's state, else on the newest checkpoint.

        For predictions batch by batch; `predict` opens a session for each call.
        """
        return self._inference_session("predict", ())

    def looking(self) -> contextlib.AbstractContextManager[Session]:
        """Returns `inference_session`. Deprecated."""
        _warn("Trainer.looking()", "inference_session()")
        return self.inference_session()

    def export(self, path: str, *, example: Any = None, options: ExportConfig | None = None) -> str:
        """Writes a version of the model that needs no code of the task, see ``docs/formats/export.md``.

        `monolith.serving.Predictor` serves it.

        Args:
            path: The folder of all versions, or an fsspec URL.
            example: A batch with all columns that requests will have; None: the first of the task's input for mode
                ``predict``.
            options: Version, shards, and format of the rows; None: one piece, with `TrainerConfig.exporting`.

        Returns:
            The folder of the version.

        Raises:
            InvalidArgumentError: a model that cannot be exported, or a signature that it cannot answer; names the
                source line. Nothing is written.
        """
        export_config = ExportConfig(skip_zero=self.config.exporting.skip_zero) if options is None else options
        with self._inference_session("predict", ()) as session:
            return export_session(session, path, example=example, options=export_config)

    # Training

    def _training_session(self, saver: Saver | None, hooks: Sequence[Hook]) -> Session:
        config, strategy, pipeline = self.config, self._strategy, self.config.pipeline
        if config.deterministic:
            pipeline = dataclasses.replace(pipeline, wait_for_batches=True)
        return Session(
            self.task,
            hooks=hooks,
            model_dir=config.model_dir,
            restore=lambda state: strategy.restore(state, saver, clock=self._clock),
            state=self._state,
            pipeline=pipeline,
            worker_index=config.worker_index,
            deterministic=config.deterministic,
            dense=config.dense,
            placement=self._placement,
            strategy=strategy,
        )

    def _training_hooks(self, saver: Saver | None, hooks: Sequence[Hook]) -> list[Hook]:
        config, strategy = self.config, self._strategy
        chief: list[Hook] = []
        if strategy.is_chief:
            chief += strategy.hooks_before_savers()
            chief += chief_hooks(
                config, saver, strategy, model_name=self._model_name, clock=self._clock, exports=self._export_listeners
            )
            chief += self.task.training_chief_hooks()
        else:
            chief += marker_hooks(config, clock=self._clock)
        # A checkpoint of the same step holds what they leave; rows of a job are those of all workers.
        first = eviction_hooks(config.tables, strategy) if strategy.is_chief else []
        together = [*strategy.hooks_after_savers(), *publishing_hooks(config, strategy)]
        user = [*self._hooks, *hooks, *report_hooks(config), *record_hooks(config, self.history, strategy)]
        return [*first, *chief, *together, *user, SetCurrentSessionHook(), *self.task.training_hooks()]

    def _export_listeners(self, saver: Saver) -> list[SaverListener]:
        """Exports with each checkpoint of a saver, where the task's parameters ask for it; of ranks, the first does."""
        strategy = self._strategy
        if not self.task.p.serving.export_when_saving or not strategy.is_first:
            return []
        exports = ExportsOfRun.of(self.task.p, self.config, saver, model_name=self._model_name, strategy=strategy)
        return [ExportSaverListener(saver, CheckpointExporter(self.task), exports)]

    def _shares(self) -> InputShares:
        """Returns this worker's share of the training input."""
        inputs = self._strategy.inputs
        return InputShares(
            worker=self.config.worker_index,
            num_workers=self.config.num_workers,
            job=inputs,
            queues=inputs if self.config.input.dynamic_sharding else None,
        )

    def _predict_items(self, items: CandidateItems) -> None:
        """Writes the item cache table, and an export of it with the tower of users."""
        # What other processes keep is read from the last checkpoint.
        trainer = (
            self
            if self._strategy.is_alone
            else Trainer(copied_task(self.task), dataclasses.replace(self.config, items=None))
        )
        model_dir, serving = str(self.config.model_dir), self.task.p.serving
        with trainer._inference_session("predict", ()) as session:  # noqa: SLF001 - of its own class
            cached = cache_items(session, items)
            write_item_cache(cached, join(model_dir, ITEM_CACHE))
            options = ExportConfig(skip_zero=self.config.exporting.skip_zero)
            path = join(model_dir, str(serving.export_dir_base), TWO_STAGE)
            export_two_stage(session, cached, path, options=options)

    # State

    @property
    def _model_name(self) -> str:
        return str(self.config.model_name or self.task.p.metrics.deep_insight_name or self.task.p.name)

    @property
    def _eval_steps(self) -> int | None:
        """Returns the number of batches from the task's parameters: given, or computed from examples and batch size."""
        p = self.task.p
        batch_size = p.eval.per_replica_batch_size
        if p.eval.steps is not None or p.input.eval_examples is None or batch_size is None:
            return None if p.eval.steps is None else int(p.eval.steps)
        return int(p.input.eval_examples) // int(batch_size)

    @contextlib.contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Enters the context of the task and its modules."""
        config = self.config
        context = Context(
            num_ps=config.tables.num_ps,
            num_workers=config.num_workers,
            worker_index=config.worker_index,
            model_name=self._model_name,
            server_type="worker",
        )
        evicts_by_steps = config.tables.evict_every_steps is not None
        tables = TableDefaults(
            admission=config.tables.admission,
            initial_capacity=config.tables.initial_capacity,
            evict_every_seconds=0 if evicts_by_steps else config.tables.evict_every_seconds,
        )
        with use_context(context), use_table_defaults(tables), use_metric_name(config.reporting.job_name):
            yield

    def _default_strategy(self) -> Strategy:
        return SingleProcess() if self.config.sync is None else Ranks()

    @contextlib.contextmanager
    def _inference_session(self, mode: Mode, hooks: Sequence[Hook]) -> Iterator[Session]:
        """Opens a read-only session on this trainer's state, else on the newest checkpoint."""
        with self._surroundings():
            session = Session(
                self.task,
                mode=mode,
                hooks=hooks,
                model_dir=self.config.model_dir,
                state=self._state,
                restore=self._require_checkpoint if self._state is None else None,
                placement=self._placement,
            )
            with session:
                self._state = session.state
                yield session

    def _require_checkpoint(self, state: TrainState) -> None:
        restore_to_look(self.config, state, name=str(self.task.p.name))


def _former_strategy(
    strategy: Strategy | None, servers: DenseServers | None, row_servers: PsCluster | None
) -> Strategy:
    """Returns the strategy that former keywords of a `Trainer` mean."""
    if strategy is not None or (servers is not None and row_servers is not None):
        raise ValueError("Trainer: expected strategy, or one of the deprecated servers and row_servers, got several")
    if row_servers is not None:
        _warn("Trainer(row_servers=...)", "strategy=Ranks(row_servers)", level=4)
        return Ranks(row_servers)
    _warn("Trainer(servers=...)", "strategy=SingleProcess(servers)", level=4)
    return SingleProcess(servers)


def _warn(former: str, now: str, *, level: int = 3) -> None:
    text = f"{former} is deprecated and will be removed in the next version: use {now}"
    warnings.warn(text, DeprecationWarning, stacklevel=level)


def _task_of(task: Task | type[Task] | Params) -> Task:
    instance = task() if isinstance(task, type) else task.instantiate() if not isinstance(task, Task) else task
    if not isinstance(instance, Task):
        raise TypeError(f"Trainer: expected a Task, got {type(instance).__name__}")
    require_effective_parameters(instance.p, Task.params())
    return instance
