"""A serving copy of a trained model: rows compressed for serving, without optimizer state.

`SyncRule` decides when the copy loads trained rows and weights, in event time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.checkpoint import TrainState
from monolith.config import Config, config
from monolith.errors import FailedPreconditionError
from monolith.nn import TableDefaults, use_table_defaults
from monolith.nn.embeddings import RowAnchor
from monolith.tables import NUM_BUCKETS, ChangePosition, ChangeReader, Store, TableConfig
from monolith.tables.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn

    from monolith.train import Spec, Task


@config
class SyncRule(Config):
    """Sync intervals of a serving copy.

    >>> SyncRule(rows_seconds=60, dense_seconds=86_400)  # as the paper serves: rows by the minute, weights by the day
    SyncRule(rows_seconds=60, dense_seconds=86400)
    """

    rows_seconds: float = 60.0
    """Seconds of event time from one load of rows to the next; 0: before every batch; infinite: only once, when
    measuring begins, like a model that is trained in batches and then served."""
    dense_seconds: float | None = None
    """Interval for dense weights; None: together with the rows."""

    def __post_init__(self) -> None:
        for name in ("rows_seconds", "dense_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds >= 0:
                raise ValueError(f"SyncRule: {name} must be >= 0 seconds of event time, got {seconds!r}")


class Due(NamedTuple):
    """What is to be loaded now."""

    rows: bool
    dense: bool


class SyncClock:
    """Schedule of a `SyncRule`.

    Intervals count from the start of measuring, so that copies with the same interval agree.

    >>> clock = SyncClock(SyncRule(rows_seconds=60, dense_seconds=3600), begin=1000)
    >>> [clock.due(time).rows for time in (1003, 1050, 1061, 1119, 1300, 1310)]
    [True, False, True, False, True, False]
    """

    def __init__(self, rule: SyncRule, *, begin: int) -> None:
        self._rows = _Beat(rule.rows_seconds, begin)
        self._dense = self._rows if rule.dense_seconds is None else _Beat(rule.dense_seconds, begin)

    def due(self, time: int) -> Due:
        """Returns what is due before an example of this event time is predicted, and marks it as done."""
        rows = self._rows.passes(time)
        return Due(rows, rows if self._dense is self._rows else self._dense.passes(time))


class _Beat:
    """Detects whether another interval has begun since the last call."""

    def __init__(self, seconds: float, begin: int) -> None:
        self._seconds = seconds
        self._begin = begin
        self._number = -1

    def passes(self, time: int) -> bool:
        if self._seconds == 0:
            return True
        number = max(0, int((time - self._begin) / self._seconds))
        if number <= self._number:
            return False
        self._number = number
        return True


_BUCKETS_AT_A_TIME = 64
"""Number of buckets copied together in the first load, which bounds the additional memory."""


class ServingCopy:
    """Copy of the tables and weights of a trained model, updated on request. Not thread-safe.

    It reads the changes as a follower in another process gets them from a log: rows that were touched, compressed, and
    tombstones of those that were removed.
    """

    def __init__(self, name: str, make_task: Callable[[], Task], trained: TrainState) -> None:
        self._name = f"validation:{name}"
        self._trained = trained
        self._task = make_task()
        with use_table_defaults(TableDefaults(store=_serving_store)):
            self.model = self._task.make_model().eval()
        self.stores: dict[str, Store] = TrainState(model=self.model).stores
        """Its serving tables, by the store names of the trained model."""
        if self.stores.keys() != trained.stores.keys():
            raise FailedPreconditionError(
                f"serving copy {name!r}: the task was made twice and has the tables {sorted(trained.stores)} and then"
                f" {sorted(self.stores)}; make_task must make the same model each time"
            )
        self._readers: dict[str, ChangeReader] = {}
        self.num_takes = 0
        """Number of times it loaded rows."""
        self.bytes_taken = 0
        """Size of the loaded rows and tombstones."""

    def take_rows(self) -> None:
        """Loads the current rows of the trained tables."""
        for name, served in self.stores.items():
            reader, ranges = self._reader_of(name)
            reached = reader.next_mark()
            for buckets in ranges:
                changes = reader.packed_changes(state=False, buckets=buckets)
                self.bytes_taken += len(memoryview(changes.data))
                served.load(changes, buckets=buckets, replace=False)
            reader.advance(reached)
        self.num_takes += 1

    @torch.no_grad()
    def take_dense(self) -> None:
        """Loads the dense weights, and buffers such as normalisation statistics."""
        own = dict(_dense_of(self.model))
        for name, tensor in _dense_of(self._trained.model):
            own[name].copy_(tensor)

    @torch.no_grad()
    def look(self, features: Mapping[str, Any]) -> Spec:
        """Predicts a batch without changing any state."""
        return self._task.model_fn(features, "eval")

    def stand_still(self) -> None:
        """Stops loading rows, so that the trained tables keep no changes for it. It can still predict."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.close()

    def _reader_of(self, name: str) -> tuple[ChangeReader, list[range]]:
        if name in self._readers:
            return self._readers[name], [range(NUM_BUCKETS)]
        store = self._trained.stores[name]
        now = store.open_reader(self._name).mark
        # Epoch 0: all rows of the tables count as changed.
        self._readers[name] = store.open_reader(self._name, at=ChangePosition(now.generation, now.life, 0))
        firsts = range(0, NUM_BUCKETS, _BUCKETS_AT_A_TIME)
        return self._readers[name], [range(first, first + _BUCKETS_AT_A_TIME) for first in firsts]


def _serving_store(configs: Mapping[str, TableConfig]) -> LocalStore:
    return LocalStore({name: replace(table, serving=True) for name, table in configs.items()})


def _dense_of(model: nn.Module | None) -> Iterator[tuple[str, Tensor]]:
    """Yields weights and buffers by name, without placeholders of rows."""
    if model is None:
        return
    for name, weight in model.named_parameters():
        if not isinstance(weight, RowAnchor):
            yield name, weight
    yield from model.named_buffers()
