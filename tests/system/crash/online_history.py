"""The content of a delta log over time: the counts of items and events after each of its increments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith.checkpoint.tensor_bytes import tensors_from_bytes
from monolith.deltalog import DENSE_PART, IncrementKind
from monolith.deltalog.follow.log_applier import LogApplier
from monolith.serving.export_versions import ExportVersions
from monolith.tables import TableGroup
from system.crash.online_events import NUM_ITEMS
from system.crash.online_follower import STORE, slot_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from monolith.deltalog import DeltaLog, Increment

__all__ = ["BaseNumbers", "DenseWeight", "LogHistory", "read_history"]

_WEIGHT = "total.weight"


class DenseWeight(NamedTuple):
    """An increment of dense weights."""

    total: float
    needs: int
    """Number of the rows that it was trained with."""


class BaseNumbers(NamedTuple):
    """A base: it has these increments, and perhaps a part of the next ones."""

    dense: int
    rows: int


@dataclass(slots=True)
class LogHistory:
    """The history of one part of rows, and of the dense weights."""

    part: str
    items: list[NDArray[np.float32]]
    """Index n + 1 -> the counts of items after increment n of rows; index 0: before all increments."""
    events: list[NDArray[np.float32]]
    dense: dict[int, DenseWeight] = field(default_factory=dict)
    """Dense weights by the number of their increment."""
    bases: list[BaseNumbers] = field(default_factory=list)
    """States at which a reader may have begun."""

    @property
    def last(self) -> int:
        """The last number of rows."""
        return len(self.items) - 2

    def least(self, of: list[NDArray[np.float32]], begin: int, end: int) -> NDArray[np.float32]:
        """Returns the minimum counts from one number to another, inclusive: a killed run may have gone back."""
        begin = min(max(begin, -1), self.last)
        end = min(max(end, begin), self.last)
        least: NDArray[np.float32] = np.min(of[begin + 1 : end + 2], axis=0)
        return least


def read_history(log: DeltaLog, export: Path, num_events: int, bases: Iterable[Mapping[str, int]]) -> LogHistory:
    """Applies the log from its beginning, one increment after another.

    Args:
        log: The complete log: nothing was trimmed.
        export: Export of the servers.
        num_events: Number of events whose rows are read.
        bases: The numbers of every base, including those deleted with their checkpoints.
    """
    stores = ExportVersions(str(export)).newest().with_rows.new_stores()
    tables = TableGroup.of_store(stores[STORE])
    event_table, event_keys = slot_keys("event", range(num_events))
    item_table, item_keys = slot_keys("whole", range(NUM_ITEMS))
    part = next(part for part in log.parts() if part != DENSE_PART)
    history = LogHistory(part, [np.zeros(NUM_ITEMS, np.float32)], [np.zeros(num_events, np.float32)])

    def note(found: Increment) -> None:
        if found.part == part:
            history.items.append(tables[item_table].lookup(item_keys)[:, 0].numpy().copy())
            history.events.append(tables[event_table].lookup(event_keys)[:, 0].numpy().copy())
        elif found.kind is IncrementKind.DENSE:
            weights = tensors_from_bytes(found.payload, origin=f"increment {found.number}")
            history.dense[found.number] = DenseWeight(weights[_WEIGHT].item(), found.needs.get(part, -1))

    applier = LogApplier(stores, log, on_applied=note)
    applier.look_for_parts()
    while applier.apply_next():
        pass
    applier.close()
    history.bases += [BaseNumbers(dense=each.get(DENSE_PART, -1), rows=each[part]) for each in bases if part in each]
    return history
