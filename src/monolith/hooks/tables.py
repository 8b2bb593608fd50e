"""Hooks of the tables: eviction of expired rows, and periodic log lines with sizes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.hook import Hook
from monolith.hooks.timer import SecondOrStepTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext
    from monolith.tables import Store


_log = logging.getLogger(__name__)


def evict_expired(session: HookedSession) -> int:
    """Removes expired rows from the tables of the session's model, between two steps; returns the number removed."""
    session.settle()  # postponed updates are applied, and prefetched rows are read again
    return sum(module.evict() for module in session.state.embeddings.values())


class EvictionHook(Hook):
    """Removes expired rows at an interval of steps or seconds, relative to the newest time that was trained on.

    By steps, eviction is a function of the global step alone, so a resumed run removes the same rows as an
    uninterrupted one. It belongs before the saver: a checkpoint of the same step then holds the remaining rows.
    Postponed updates are applied first, and prefetched rows are read again.

    Args:
        every_steps: Evicts after each step that this divides.
        every_secs: Or seconds from one eviction to the next, counted from the start of the session.
        clock: Measures the seconds.
        timer: Timer to use instead of one with these seconds.

    Raises:
        ValueError: both or none of the intervals, or one that is not positive.
    """

    def __init__(
        self,
        *,
        every_steps: int | None = None,
        every_secs: float | None = None,
        clock: Clock | None = None,
        timer: SecondOrStepTimer | None = None,
    ) -> None:
        self._every_steps = every_steps
        self._timer = SecondOrStepTimer(every_secs, every_steps, clock=clock) if timer is None else timer

    def after_create_session(self, session: HookedSession) -> None:
        """Starts the interval."""
        self._timer.update_last_triggered_step(session.global_step)

    def after_run(self, context: StepContext) -> None:
        """Evicts when it is due."""
        step = context.global_step
        if self._every_steps is not None:
            is_due = step % self._every_steps == 0
        else:
            is_due = self._timer.should_trigger_for_step(step)
        if is_due:
            self._timer.update_last_triggered_step(step)
            _log.info("step %d: %d expired rows were removed", step, evict_expired(context.session))


EVERY_SECONDS = 600.0


def describe_tables(stores: Mapping[str, Store]) -> str:
    """Returns rows and memory of all tables, and the rows of each."""
    stats = {name: store.stats() for name, store in stores.items()}
    rows, memory = (
        sum(store_stats.rows for store_stats in stats.values()),
        sum(store_stats.memory_bytes for store_stats in stats.values()),
    )
    tables = [
        f"{module}/{table} {int(numbers['rows'])}" if module else f"{table} {int(numbers['rows'])}"
        for module, store_stats in stats.items()
        for table, numbers in store_stats.tables.items()
    ]
    ahead = sum(store_stats.times_ahead for store_stats in stats.values())
    wrong = f"; {ahead} times lay far ahead" if ahead else ""
    return f"{rows} rows in {memory / 2**20:.1f} MiB: {', '.join(tables) or 'no table'}{wrong}"


class SyncTrainingInfoHook(Hook):
    """Logs the sizes of the tables every ten minutes.

    Args:
        stores: Finds the tables; by default those of the session's model.
        every_secs: Seconds from one line to the next; the first comes with the first step.
        clock: Measures the seconds.
    """

    def __init__(
        self,
        *,
        stores: Callable[[HookedSession], Mapping[str, Store]] = lambda session: session.state.stores,
        every_secs: float = EVERY_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._stores = stores
        self._every_secs = every_secs
        self._clock = clock or SystemClock()
        self._next = 0.0

    def after_create_session(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Makes a line due at the first step."""
        self._next = self._clock.monotonic()

    def after_run(self, context: StepContext) -> None:
        """Writes the line when it is due."""
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + self._every_secs
            _log.info("tables at step %d: %s", context.global_step, describe_tables(self._stores(context.session)))
