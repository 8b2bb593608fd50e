"""Metrics of how evenly ids and rows are spread over the ranks, for ``enable_alltoall_metrics``."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from monolith.errors import InvalidArgumentError, OpError
from monolith.hook import Hook
from monolith.observe.summaries import SummaryWriter, histograms, scalars

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.collective.sharded.metrics import AlltoallMetrics
    from monolith.collective.sharded.store import ShardedStore
    from monolith.hook import HookedSession, StepContext

__all__ = ["AlltoallMetricsHook"]

_log = logging.getLogger(__name__)


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
        found = list(self._last.items())
        numbers = {f"{prefix}{name}": each for prefix, last in found for name, each in last.scalars.items()}
        told = ", ".join(f"{name} {number}" for name, number in numbers.items())
        _log.info("step %d: exchanges of rows: %s", context.global_step, told)
        if self._log_dir is None:
            return
        lists = {f"{prefix}{name}": each for prefix, last in found for name, each in last.histograms.items()}
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
