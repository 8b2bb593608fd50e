"""The restores of several shards as one: all are checked before any of them changes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from monolith.tables.store import PreparedRestore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.tables.snapshot.restore import RestoreReport


class ShardsRestore(PreparedRestore):
    """`monolith.tables.store.PreparedRestore` of several owners."""

    def __init__(self, prepare: Sequence[Callable[[], PreparedRestore]]) -> None:
        with ExitStack() as undone:
            self._parts = [undone.enter_context(each()) for each in prepare]
            self._closing = undone.pop_all()

    def load(self) -> RestoreReport:
        """Replaces what the owners hold."""
        reports = [part.load() for part in self._parts]
        rows = {table: sum(report.rows[table] for report in reports) for table in reports[0].rows}
        return replace(reports[0], rows=rows)

    def __exit__(self, *_: object) -> None:
        self._closing.close()
