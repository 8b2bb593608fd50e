"""Hooks of the ranks of a synchronous run: table sizes, exchanges of rows, the last loss; and a timer for all ranks."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from monolith.errors import InvalidArgumentError, OpError
from monolith.hook import Hook
from monolith.hooks import SecondOrStepTimerWithTideSetting, SyncTrainingInfoHook, has_tensorboard
from monolith.observe.summaries import SummaryWriter, histograms, scalars

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.collective.sharded import AlltoallMetrics, ShardedStore
    from monolith.hook import HookedSession, StepContext
    from monolith.hooks import SecondOrStepTimer
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.strategies.rank_steps import RankSteps

_log = logging.getLogger(__name__)


def rank_hooks(steps: RankSteps, config: TrainerConfig) -> list[Hook]:
    """Returns the hooks of every rank: table sizes in the log, and the last loss of ranks that log no steps."""
    if not steps.shares_rows:
        return [SyncTrainingInfoHook()] if steps.is_first else [LastLossHook()]
    if steps.is_alone:
        return [SyncTrainingInfoHook()]
    own = SyncTrainingInfoHook(stores=lambda _: {store.name: store.own_rows for store in steps.stores})
    return [own, *_exchange_hooks(steps, config), *([] if steps.is_first else [LastLossHook()])]


def _exchange_hooks(steps: RankSteps, config: TrainerConfig) -> list[Hook]:
    """Returns the hooks of every rank, since all of them refuse a missing slot; rank 0 reports."""
    reporting, settings = config.reporting, config.sync
    every_steps = reporting.summary_every_steps or reporting.log_every_steps
    if settings is None or not settings.alltoall_metrics:
        return []
    if steps.is_first and every_steps is None:
        _log.warning("enable_alltoall_metrics shows nothing: neither records nor log lines are wanted")
    writes = has_tensorboard() if reporting.tensorboard is None else reporting.tensorboard
    return [
        AlltoallMetricsHook(
            lambda: steps.stores,
            slot=settings.alltoall_metrics_slot,
            every_steps=every_steps or 1,
            log_dir=config.model_dir if writes else None,
            writes=steps.is_first and every_steps is not None,
        )
    ]


class AlltoallMetricsHook(Hook):
    """Writes the numbers of rank 0's last read to its log and to event files, every `every_steps` steps.

    Args:
        stores: Stores of the model, once it is built; numbers of the first have plain names, those of others are
            prefixed by the name of their store.
        slot: A table whose ids are counted, too.
        every_steps: Steps between records.
        log_dir: Folder of event files; None: no event files.
        writes: Whether this rank writes; the others only check that the slot exists.
    """

    def __init__(
        self,
        stores: Callable[[], Sequence[ShardedStore]],
        *,
        slot: str | None = None,
        every_steps: int,
        log_dir: str | None,
        writes: bool = True,
    ) -> None:
        self._writes = writes
        self._stores = stores
        self._slot = slot
        self._every_steps = every_steps
        self._log_dir = log_dir
        self._writer: SummaryWriter | None = None
        self._last: dict[str, AlltoallMetrics] = {}

    def after_create_session(self, session: HookedSession) -> None:
        """Begins to count."""
        session.on_close(self._close)
        stores = self._stores()
        tables = [table.name for store in stores for table in store.schema.tables]
        if self._slot is not None and self._slot not in tables:
            raise InvalidArgumentError(
                f"option enable_alltoall_metrics_for_slot must name a table of the model, one of {sorted(tables)}, got"
                f" {self._slot!r}"
            )
        for number, store in enumerate(stores if self._writes else ()):
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


class LastLossHook(Hook):
    """Logs the loss of the last step, once."""

    def end(self, session: HookedSession) -> None:
        """Logs at the end of training."""
        loss = None if session.last is None else session.last.loss
        if loss is not None:
            _log.info("step %d: loss %.6g", session.global_step, float(loss))


class RankTimer(SecondOrStepTimerWithTideSetting):
    """A timer that is due on all ranks when that of rank 0 is. Changes that all ranks make take effect immediately."""

    def __init__(self, timer: SecondOrStepTimer, steps: RankSteps) -> None:
        super().__init__(every_steps=1)
        self._timer = timer
        self._wish = steps.add_wish(lambda step: steps.is_first and timer.should_trigger_for_step(step))

    def reset(self) -> None:
        """Clears the time at which it was last due."""
        super().reset()
        self._timer.reset()

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether the timer is due at this step, which the ranks have just made."""
        if not self.enabled or step == self.last_triggered_step():
            return False
        return self._due or self._wish.is_granted

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Notes that it was done at this step."""
        super().update_last_triggered_step(step)
        return self._timer.update_last_triggered_step(step)
