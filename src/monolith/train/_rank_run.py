"""What a trainer does differently as one rank of a synchronous run: identity, reports, initial state."""

from __future__ import annotations

import dataclasses
import logging
from functools import partial
from typing import TYPE_CHECKING

from monolith import collective, environment
from monolith.collective import MemoryKeyStore
from monolith.errors import InvalidArgumentError, OpError
from monolith.hook import Hook
from monolith.hooks import SyncTrainingBarrierSaverListener, SyncTrainingInfoHook, has_tensorboard
from monolith.observe.summaries import SummaryWriter, histograms, scalars
from monolith.train.config.job_config import SyncConfig
from monolith.train.input.jobs import RankInputs
from monolith.train.rank_part import RankPart
from monolith.train.saving.restoring import go_on
from monolith.train.saving.server_rows import begin_rows_of_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.checkpoint import Saver, TrainState
    from monolith.clock import Clock
    from monolith.collective.sharded import AlltoallMetrics, ShardedStore
    from monolith.hook import HookedSession, StepContext
    from monolith.hooks import SaverListener
    from monolith.ps.client import PsCluster
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.parameters.params import Params


class AlltoallMetricsHook(Hook):
    """Writes the numbers of rank 0's last read to its log and to event files, every `every_steps` steps.

    Args:
        stores: Stores of the model, once it is built; numbers of the first have plain names, those of others are
            prefixed by the name of their store.
        slot: A table whose ids are counted, too.
        every_steps: Steps between records.
        log_dir: Folder of event files; None: no event files.
        tells: Whether this rank writes; the others only check that the slot exists.
    """

    def __init__(
        self,
        stores: Callable[[], Sequence[ShardedStore]],
        *,
        slot: str | None = None,
        every_steps: int,
        log_dir: str | None,
        tells: bool = True,
    ) -> None:
        self._tells = tells
        self._stores = stores
        self._slot = slot
        self._every_steps = every_steps
        self._log_dir = log_dir
        self._writer: SummaryWriter | None = None
        self._last: dict[str, AlltoallMetrics] = {}

    def after_create_session(self, session: HookedSession) -> None:
        """Begins to count.

        Raises:
            InvalidArgumentError: there is no such slot.
        """
        session.on_close(self._close)
        stores = self._stores()
        tables = [table.name for store in stores for table in store.schema.tables]
        if self._slot is not None and self._slot not in tables:
            raise InvalidArgumentError(
                f"option enable_alltoall_metrics_for_slot must name a table of the model, one of {sorted(tables)}, got"
                f" {self._slot!r}"
            )
        for number, store in enumerate(stores if self._tells else ()):
            has_slot = self._slot in [table.name for table in store.schema.tables]
            prefix = f"{store.name}/" if number else ""
            store.watch_alltoall(partial(self._last.__setitem__, prefix), slot=self._slot if has_slot else None)

    def after_run(self, context: StepContext) -> None:
        """Writes the numbers if a record is due."""
        if context.global_step % self._every_steps or not self._last:
            return
        exchanges = list(self._last.items())
        numbers = {f"{prefix}{name}": number for prefix, last in exchanges for name, number in last.scalars.items()}
        text = ", ".join(f"{name} {number}" for name, number in numbers.items())
        _log.info("step %d: exchanges of rows: %s", context.global_step, text)
        if self._log_dir is None:
            return
        lists = {f"{prefix}{name}": numbers for prefix, last in exchanges for name, numbers in last.histograms.items()}
        try:
            if self._writer is None:
                self._writer = SummaryWriter(self._log_dir)
            self._writer.add_summary(scalars(numbers), global_step=context.global_step)
            self._writer.add_summary(histograms(lists), global_step=context.global_step)
            self._writer.flush()
        except OpError as error:
            _log.warning("exchanges of rows: no more event files: %s", error)
            self._log_dir = None

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


_log = logging.getLogger(__name__)

SUMMARY_INTERVAL = "MONOLITH_SAVE_SUMMARY_INTERVAL"
LOG_INTERVAL = "MONOLITH_ROOT_LOG_INTERVAL"


def with_accelerator(config: TrainerConfig, params: Params) -> TrainerConfig:
    """Returns the config with the effect of a task's parameter ``accelerator``: synchronous training as a rank.

    Raises:
        ValueError: it names an accelerator that a trainer does not support.
    """
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


def join_ranks(config: TrainerConfig, servers: PsCluster | None = None) -> RankPart | None:
    """Returns the part of this process in a synchronous run; None if the config is not synchronous.

    Args:
        config: Config of this rank.
        servers: Parameter servers that store the rows; None: the ranks share them.

    Raises:
        ValueError: its index differs from the rank given by its launcher; names both.
        InvalidArgumentError: the configs of the ranks differ; raised on all of them.
    """
    if config.sync is None:
        return None
    part = RankPart.join(config.sync, deterministic=config.deterministic, servers=servers)
    place = (part.rank, part.size)
    if place != (config.worker_index, config.num_workers):
        raise ValueError(
            f"synchronous training: worker_index and num_workers must be rank and size of the run, {part.rank} and"
            f" {part.size}, got {config.worker_index} and {config.num_workers}; start as many processes as workers with"
            " torchrun, each with its RANK as index"
        )
    if not part.is_alone:
        alike = dataclasses.replace(config, worker_index=0, reporting=type(config.reporting)())
        lines = "\n".join([*_lines_of(alike.to_dict()), f"averaging of dense gradients: {part.averaging}"])
        part.words.require_same("config", lines, advice="start all ranks with the same options")
    return part


def _lines_of(plain: object, name: str = "config") -> list[str]:
    """Returns a nested config as lines, one value each."""
    if isinstance(plain, dict):
        return [line for key, value in plain.items() for line in _lines_of(value, f"{name}.{key}")]
    return [f"{name} = {plain!r}"]


def config_of_rank(config: TrainerConfig, part: RankPart) -> TrainerConfig:
    """Returns the config of a rank: only rank 0 reports; intervals are those of its environment."""
    reporting = config.reporting
    summary, log = part.words.broadcast("intervals", lambda: [_interval(SUMMARY_INTERVAL), _interval(LOG_INTERVAL)])
    summary = reporting.summary_every_steps if summary is None else summary or None
    reporting = dataclasses.replace(
        reporting,
        summary_every_steps=summary,
        log_every_steps=reporting.log_every_steps if log is None else log or None,
    )
    if not part.is_first:
        reporting = dataclasses.replace(
            reporting, log_every_steps=None, tensorboard=False, progress=False, profile_from=None, throughput=False
        )
    return dataclasses.replace(config, reporting=reporting, control=None)


def inputs_of_rank(part: RankPart, config: TrainerConfig, applied: Callable[[], Mapping[int, int]]) -> RankInputs:
    """Returns a rank's view of the inputs of all ranks."""
    has_queue = config.input.dynamic_sharding
    part.inputs = RankInputs(
        collective.key_store() if has_queue else MemoryKeyStore(),  # not every library has one
        rank=part.rank,
        num_ranks=part.size,
        applied=applied,
        shares_queue=has_queue,
    )
    return part.inputs


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


def rank_hooks(part: RankPart, config: TrainerConfig) -> list[Hook]:
    """Returns the hooks of every rank: table sizes in the log, and the last loss of ranks that log no steps."""
    if not part.shares_rows:
        return [SyncTrainingInfoHook()] if part.is_first else [LastLossHook()]
    if part.is_alone:
        return [SyncTrainingInfoHook()]
    own = SyncTrainingInfoHook(stores=lambda _: {store.name: store.own_rows for store in part.stores})
    return [own, *_exchange_hooks(part, config), *([] if part.is_first else [LastLossHook()])]


def _exchange_hooks(part: RankPart, config: TrainerConfig) -> list[Hook]:
    """Returns the hooks of every rank, since all of them refuse a missing slot; rank 0 reports."""
    reporting = config.reporting
    every_steps = reporting.summary_every_steps or reporting.log_every_steps
    if not part.settings.alltoall_metrics:
        return []
    if part.is_first and every_steps is None:
        _log.warning("enable_alltoall_metrics shows nothing: neither records nor log lines are wanted")
    writes = has_tensorboard() if reporting.tensorboard is None else reporting.tensorboard
    return [
        AlltoallMetricsHook(
            lambda: part.stores,
            slot=part.settings.alltoall_metrics_slot,
            every_steps=every_steps or 1,
            log_dir=config.model_dir if writes else None,
            tells=part.is_first and every_steps is not None,
        )
    ]


def rank_listeners(saver: Saver) -> Sequence[SaverListener]:
    """Returns listeners that let no rank continue after a save before all ranks have its outcome."""
    return [SyncTrainingBarrierSaverListener()] if saver.protocol.is_collective else []


class LastLossHook(Hook):
    """Logs the loss of the last step, once."""

    def end(self, session: HookedSession) -> None:
        """Logs at the end of training."""
        loss = None if session.last is None else session.last.loss
        if loss is not None:
            _log.info("step %d: loss %.6g", session.global_step, float(loss))


def restore_together(
    part: RankPart, config: TrainerConfig, saver: Saver | None, state: TrainState, *, clock: Clock
) -> bool:
    """Restores all ranks from one checkpoint, else from the weights of rank 0; returns whether one existed."""
    is_restored = saver is not None and go_on(config, saver, state, clock=clock)
    if not part.shares_rows:
        begin_rows_of_ranks(part.words, state, is_restored=is_restored)
    part.begin_alike(state)
    if is_restored and part.inputs is not None:
        part.inputs.begin(state.applied)
    return is_restored
