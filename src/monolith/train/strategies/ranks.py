"""`Ranks`: one rank of a synchronous run, whose ranks make all steps together and share the rows, or have servers."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from typing import TYPE_CHECKING

from monolith import collective, environment
from monolith.checkpoint import Saver
from monolith.collective import LockStep, MemoryKeyStore
from monolith.collective.sharded import ShardedStore
from monolith.errors import FailedPreconditionError
from monolith.hooks import SyncTrainingBarrierSaverListener
from monolith.train._dense_step import require_servers
from monolith.train._table_pipeline import TablePipeline
from monolith.train.config.job_config import SyncConfig
from monolith.train.device_placement import TABLES_ON_SERVERS
from monolith.train.input.jobs import RankInputs
from monolith.train.saving.job_restoring import JOB
from monolith.train.saving.rank_folder_protocol import RankFolderSaveProtocol
from monolith.train.saving.rank_protocol import RankSaveProtocol, ServerRankSaveProtocol
from monolith.train.saving.restoring import restore_to_train
from monolith.train.saving.server_rows import begin_rows_of_ranks, server_stores
from monolith.train.strategies.rank_hooks import RankTimer, rank_hooks
from monolith.train.strategies.rank_steps import RankSteps
from monolith.train.strategies.rank_updates import DenseAveraged, RankPipeline
from monolith.train.strategies.single import AppliedBatches
from monolith.train.strategies.strategy import Strategy, refuse_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.checkpoint import TrainState
    from monolith.clock import Clock
    from monolith.errors import OpError
    from monolith.hook import Hook
    from monolith.hooks import SaverListener, SecondOrStepTimerWithTideSetting
    from monolith.ps.client import PsCluster
    from monolith.tables import Store, TableConfig
    from monolith.train._dense_step import DenseConfig, DenseStep
    from monolith.train._table_pipeline import PipelineConfig
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.parameters.params import Params
    from monolith.train.session import Session
    from monolith.train.strategies.strategy import EndedBy
    from monolith.train.task import Mode

_log = logging.getLogger(__name__)

SUMMARY_INTERVAL = "MONOLITH_SAVE_SUMMARY_INTERVAL"
LOG_INTERVAL = "MONOLITH_ROOT_LOG_INTERVAL"


class Ranks(Strategy):
    """A rank of the launcher's run; without a launcher it is a run of one.

    Args:
        row_servers: Parameter servers that store the rows; None: the ranks share them.
    """

    is_synchronous = True
    is_chief = True  # every rank saves, and removes rows

    def __init__(self, row_servers: PsCluster | None = None) -> None:
        super().__init__()
        self._row_servers = row_servers
        self._steps: RankSteps | None = None
        self._inputs: RankInputs | None = None
        self._applied = AppliedBatches()
        self._has_input = True

    @property
    def steps(self) -> RankSteps:
        """Returns the steps of this rank in the current run.

        Raises:
            FailedPreconditionError: there is no run yet.
        """
        if self._steps is None:
            raise FailedPreconditionError("ranks: they have no steps before they have joined; call join(config) first")
        return self._steps

    # The run

    def require_config(self, config: TrainerConfig) -> None:
        """Refuses a config that is not of a synchronous run, and tables on GPUs where one rank has not all rows."""
        if config.sync is None:
            what = "strategy=Ranks() is" if self._row_servers is None else "row_servers are those"
            raise ValueError(f"Trainer: {what} of a synchronous run, and config.sync is None; set it")
        if config.device.tables and self._row_servers is not None:
            raise ValueError(f"Trainer: {TABLES_ON_SERVERS}")
        if config.device.tables and config.num_workers > 1:
            raise ValueError(
                "Trainer: ranks that share tables in the memory of GPUs are not built yet, and device.tables"
                f" (train.use_gpu_emb_table) is set in a run of {config.num_workers} ranks; leave it out (dense parts"
                " still compute on GPUs), or train with one rank"
            )

    def require_session(self, mode: Mode, dense: DenseConfig) -> None:
        """Refuses a session that trains nothing, and settings of servers: ranks keep the dense weights themselves."""
        refuse_mode(mode, "ranks keep rows")
        require_servers(dense, None)

    def join(self, config: TrainerConfig) -> TrainerConfig:
        """Joins the ranks of the launcher's run, and compares their configs.

        Raises:
            ValueError: the index of the config differs from the rank given by its launcher; names both.
            InvalidArgumentError: the configs of the ranks differ; raised on all of them.
        """
        sync = SyncConfig() if config.sync is None else config.sync
        collective.init(timeout_seconds=sync.timeout_seconds)
        steps = self._steps = RankSteps(
            LockStep(collective.training_line()),
            deterministic=config.deterministic,
            shares_rows=self._row_servers is None,
        )
        if (steps.rank, steps.size) != (config.worker_index, config.num_workers):
            raise ValueError(
                f"synchronous training: worker_index and num_workers must be rank and size of the run, {steps.rank} and"
                f" {steps.size}, got {config.worker_index} and {config.num_workers}; start as many processes as workers"
                " with torchrun, each with its RANK as index"
            )
        if not steps.is_alone:
            alike = dataclasses.replace(config, worker_index=0, reporting=type(config.reporting)())
            lines = "\n".join([*_lines_of(alike.to_dict()), f"averaging of dense gradients: {steps.averaging}"])
            steps.words.require_same("config", lines, advice="start all ranks with the same options")
        self._has_input, self._applied = True, AppliedBatches()
        own = super().join(_config_of_rank(config, steps))
        has_queue = own.input.dynamic_sharding
        self._inputs = RankInputs(
            collective.key_store() if has_queue else MemoryKeyStore(),  # not every library has one
            rank=steps.rank,
            num_ranks=steps.size,
            applied=self._applied,
            shares_queue=has_queue,
        )
        return own

    @property
    def is_alone(self) -> bool:
        """Returns whether it is a run of one rank."""
        return self.steps.is_alone

    @property
    def is_first(self) -> bool:
        """Returns whether this is rank 0."""
        return self.steps.is_first

    @property
    def shares_rows(self) -> bool:
        """Returns whether the ranks store the rows, each a part."""
        return self._row_servers is None

    @property
    def follows_steps(self) -> bool:
        """Returns whether there are other ranks, whose inputs may be longer."""
        return not self.is_alone

    # The parts of a session

    def store_factory(self) -> Callable[[Mapping[str, TableConfig]], Store] | None:
        """Makes the stores of one model, on servers or shared by the ranks; None for one rank, which has all rows."""
        if self._row_servers is not None:
            return server_stores(self._row_servers)
        if self.is_alone:
            return None
        numbers = itertools.count()
        takes_mean = self.config.sync is not None and self.config.sync.combine == "mean"

        def make(configs: Mapping[str, TableConfig]) -> Store:
            number = next(numbers)
            name = f"rows_{number}" if number else "rows"
            return ShardedStore(configs, name=name, combine="mean" if takes_mean else "sum")

        return make

    def open_pipeline(self, settings: PipelineConfig) -> TablePipeline:
        """Returns the order of collective reads and updates."""
        return TablePipeline(settings) if self.is_alone else RankPipeline(settings, self.steps)

    def open_dense(
        self, state: TrainState, settings: DenseConfig, *, on_close: Callable[[Callable[[], None]], object]
    ) -> DenseStep:
        """Returns the update of the dense weights with averaged gradients."""
        return DenseAveraged(list(state.optimizers.values()), self.steps)

    def attach(self, state: TrainState) -> None:
        """Takes the stores, whose calls a rank without a batch follows."""
        self._applied.attach(state)
        self.steps.attach(state)

    # Beginning

    def restore(self, state: TrainState, saver: Saver | None, *, clock: Clock) -> None:
        """Restores all ranks from one checkpoint, else from the weights of rank 0."""
        inputs, steps = self.inputs, self.steps
        state.extra[JOB] = inputs
        is_restored = saver is not None and restore_to_train(self.config, saver, state, clock=clock)
        if not self.shares_rows:
            begin_rows_of_ranks(steps.words, state, is_restored=is_restored)
        steps.begin(state)
        if is_restored:
            inputs.begin(state.applied)
        else:
            inputs.reset()
        has_own_shares = inputs.num_shares == self.config.num_workers
        if not self.config.input.dynamic_sharding and steps.is_alone and has_own_shares:  # inputs of ranks count shares
            del state.extra[JOB]  # it has nothing to keep

    # Input

    @property
    def inputs(self) -> RankInputs:
        """Returns the inputs of all ranks.

        Raises:
            FailedPreconditionError: there is no run yet.
        """
        if self._inputs is None:
            raise FailedPreconditionError("ranks: they have no inputs before they have joined; call join(config) first")
        return self._inputs

    @property
    def has_input(self) -> bool:
        """Returns False while only other ranks have inputs of workers of an earlier start to finish."""
        return self._has_input

    def input_position(self, worker: int, own: bytes | None) -> bytes | None:
        """Returns where the input of a worker resumes, whose partitions may have been those of another worker."""
        return self.inputs.position(worker, own)

    def has_more_input(self, session: Session, ended_by: EndedBy, *, while_waiting: Callable[[], None]) -> bool:
        """Assigns unfinished inputs of an earlier start to ranks; returns whether there are any."""
        if ended_by == "stop":
            return False
        session.settle()
        if self._has_input:
            self.inputs.finish(session.worker_index)
        number = self.inputs.adopt_worker()
        if all(adopted is None for adopted in self.steps.words.gather("inputs that are left", number)):
            return False
        self._has_input = number is not None
        if number is not None:
            session.adopt_worker(number)
        return True

    # Steps

    @property
    def stop_requested(self) -> bool:
        """Returns whether all ranks end after the current step."""
        return self.steps.stops

    def request_stop(self, stop_session: Callable[[], None]) -> None:
        """Stops all ranks after the step in which they agree to stop."""
        self.steps.request_stop()

    # Saving

    def open_saver(self) -> Saver | None:
        """Returns the saver of this rank: one for all, or one for its own folder."""
        model_dir, sync = self.config.model_dir, self.config.sync
        if model_dir is None:
            return None
        options = self.saver_options(others_wait=not self.is_alone)
        if sync is not None and sync.own_folders is not None:
            protocol = RankFolderSaveProtocol(sync.checkpoint_dir(model_dir), self.steps)
            return Saver(protocol.folder, protocol=protocol, **options)
        if self.is_alone:
            return super().open_saver()
        kind = RankSaveProtocol if self.shares_rows else ServerRankSaveProtocol
        return Saver(model_dir, protocol=kind(self.steps), **options)

    # Hooks

    @property
    def removes_rows(self) -> bool:
        """Returns whether this rank removes expired rows: every rank its own, and rank 0 those of servers."""
        return self.shares_rows or self.is_first

    def hooks_after_savers(self) -> list[Hook]:
        """Returns the hooks of every rank."""
        return rank_hooks(self.steps, self.config)

    def shared_timer(self, timer: SecondOrStepTimerWithTideSetting) -> SecondOrStepTimerWithTideSetting:
        """Returns a timer that is due on all ranks when that of rank 0 is."""
        return timer if self.is_alone else RankTimer(timer, self.steps)

    def saver_listeners(self, saver: Saver) -> list[SaverListener]:
        """Returns a listener that lets no rank continue after a save before all ranks have its outcome."""
        return [SyncTrainingBarrierSaverListener()] if saver.protocol.is_collective else []

    # Failures

    def is_recoverable(self, error: OpError, step: int) -> bool:
        """Returns False for several ranks, or with servers: none can restart alone, so the launcher restarts all."""
        return self.is_alone and self.shares_rows and super().is_recoverable(error, step)

    def fails_alike(self, error: BaseException) -> bool:
        """Returns whether all ranks raise this error at the same step."""
        return self.steps.is_common(error)


def with_accelerator(config: TrainerConfig, params: Params) -> TrainerConfig:
    """Returns the config with the effect of a task's parameter ``accelerator``: synchronous training as a rank."""
    name = params.accelerator if "accelerator" in params else None
    if name is None or (name == "horovod" and config.sync is not None):
        return config
    if name != "horovod":
        raise ValueError(
            f"task {params.name}: parameter accelerator must be None or 'horovod' for a trainer, got {name!r}; tasks"
            " for TPUs are run by their own runner"
        )
    sync = SyncConfig()
    if (config.worker_index, config.num_workers) != (0, 1):
        return dataclasses.replace(config, sync=sync)
    collective.init(timeout_seconds=sync.timeout_seconds)
    return dataclasses.replace(config, sync=sync, worker_index=collective.rank(), num_workers=collective.size())


def _config_of_rank(config: TrainerConfig, steps: RankSteps) -> TrainerConfig:
    """Returns the config of a rank: only rank 0 reports; intervals are those of its environment."""
    reporting = config.reporting
    summary, log = steps.words.broadcast("intervals", lambda: [_interval(SUMMARY_INTERVAL), _interval(LOG_INTERVAL)])
    summary = reporting.summary_every_steps if summary is None else summary or None
    reporting = dataclasses.replace(
        reporting,
        summary_every_steps=summary,
        log_every_steps=reporting.log_every_steps if log is None else log or None,
    )
    if not steps.is_first:
        reporting = dataclasses.replace(
            reporting, log_every_steps=None, tensorboard=False, progress=False, profile_from=None, throughput=False
        )
    return dataclasses.replace(config, reporting=reporting, control=None)


def _interval(variable: str) -> int | None:
    text = environment.get(variable)
    if not text:
        return None
    try:
        steps = int(text)
    except ValueError:
        steps = -1
    if steps < 0:
        raise ValueError(f"environment variable {variable} must be a number of steps >= 0, got {text!r}")
    return steps


def _lines_of(plain: object, name: str = "config") -> list[str]:
    """Returns a nested config as lines, one value each."""
    if isinstance(plain, dict):
        return [line for key, value in plain.items() for line in _lines_of(value, f"{name}.{key}")]
    return [f"{name} = {plain!r}"]
