"""Periodic log lines with the sizes of the tables."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext
    from monolith.tables.store import Store

__all__ = ["SyncTrainingInfoHook", "describe_tables"]

_log = logging.getLogger(__name__)

EVERY_SECONDS = 600.0


def describe_tables(stores: Mapping[str, Store]) -> str:
    """Returns rows and memory of all tables, and the rows of each."""
    stats = {name: store.stats() for name, store in stores.items()}
    rows, memory = sum(each.rows for each in stats.values()), sum(each.memory_bytes for each in stats.values())
    tables = [
        f"{module}/{table} {int(numbers['rows'])}" if module else f"{table} {int(numbers['rows'])}"
        for module, each in stats.items()
        for table, numbers in each.tables.items()
    ]
    ahead = sum(each.times_ahead for each in stats.values())
    wrong = f"; {ahead} times lay far ahead" if ahead else ""
    return f"{rows} rows in {memory / 2**20:.1f} MiB: {', '.join(tables) or 'no table'}{wrong}"


def _stores_of(session: HookedSession) -> Mapping[str, Store]:
    return session.state.stores


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
        stores: Callable[[HookedSession], Mapping[str, Store]] = _stores_of,
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
