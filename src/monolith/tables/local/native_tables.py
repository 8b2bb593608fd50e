"""The native group with the names and configs of its tables: what `HashTable`, `TableGroup` and `LocalStore` share.

`EventClock` is the clock by which rows expire. It bounds how far one batch may move it: a wrong time must not expire a
table.
"""

from __future__ import annotations

import logging
import threading
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.tables.schema import Schema, TableSchema, fnv1a_64, table_number
from monolith.tables.table_config import sorted_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from monolith.tables.arrays import Floats
    from monolith.tables.filters import AdmissionFilter
    from monolith.tables.table_config import TableConfig

_LOG = logging.getLogger(__name__)
_ALL_TABLES = -1

LearningRates: TypeAlias = "float | Floats"
"""One number per segment; a plain number for a table of one segment."""


class NativeTables:
    """Tables in sorted-name order over one `_core.Group`. Thread-safe; names and configs never change."""

    def __init__(self, configs: Mapping[str, TableConfig]) -> None:
        self.configs = sorted_by_name(configs)
        self.names = tuple(config.name for config in self.configs)
        self.core = build_core_group(self.configs)
        self.event_clock = EventClock(partial(self.core.newest_time, _ALL_TABLES))
        """For calls that take a complete batch; the times of a partial batch were bounded before."""
        self.identity = object()
        """Identifies plans of these tables."""
        self.dims = tuple(config.dim for config in self.configs)
        self.uses_latest = tuple(config.uses_latest for config in self.configs)
        self.subjects = tuple(f"table {name!r}" for name in self.names)
        self.rate_splits = np.cumsum([0, *(len(config.segments) for config in self.configs)]).tolist()
        self._last_splits = 0, np.zeros(2, np.int64)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def schema(self) -> Schema:
        """Schema of the rows, from the core."""
        return Schema(tuple(TableSchema.parse(name, self.core.schema(n)) for n, name in enumerate(self.names)))

    def number_of(self, name: str) -> int:
        """Returns the table's index in sorted-name order.

        Raises:
            InvalidArgumentError: no such table; names the closest one.
        """
        return table_number(self.names, name)

    def splits_for(self, table: int, num_ids: int) -> NDArray[np.int64]:
        """Returns table_splits of a call in which one table has all the ids."""
        if len(self.names) == 1:
            last_num_ids, splits = self._last_splits  # batches mostly have the same size
            if last_num_ids != num_ids:
                splits = np.array((0, num_ids), np.int64)
                self._last_splits = num_ids, splits
            return splits
        splits = np.zeros(len(self.names) + 1, np.int64)
        splits[table + 1 :] = num_ids
        return splits

    def rates(self, rates_by_table: Mapping[int, LearningRates | None], step: int) -> NDArray[np.float32]:
        """Returns float32 [S]: the rates of the given tables, of their optimizers where None; 0 for all others."""
        rates = np.zeros(self.rate_splits[-1], np.float32)
        for table, values in rates_by_table.items():
            begin, end = self.rate_splits[table], self.rate_splits[table + 1]
            if values is None:
                rates[begin:end] = self.configs[table].learning_rates_at(step)
            else:
                rates[begin:end] = _checked_rates(values, end - begin, self.subjects[table])
        return rates


def _checked_rates(values: LearningRates, num_segments: int, subject: str) -> NDArray[np.float32]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    try:
        rates = np.asarray(values, np.float32).reshape(-1)
    except (TypeError, ValueError):
        raise TypeError(f"{subject}: learning_rates must be numbers, got {values!r}") from None
    if len(rates) != num_segments:
        raise InvalidArgumentError(
            f"{subject}: learning_rates must have one number per segment ({num_segments}), got {len(rates)}"
        )
    if not (np.isfinite(rates) & (rates >= 0)).all():
        raise InvalidArgumentError(f"{subject}: learning_rates must be finite and >= 0, got {rates.tolist()}")
    return rates


def build_core_group(configs: Sequence[TableConfig]) -> _core.Group:
    """Returns a native group of these tables, which must be in sorted-name order."""
    admission = _shared_admission(configs)
    caps = [_row_cap(config) for config in configs]
    specs = [_table_spec(config, cap) for config, cap in zip(configs, caps, strict=True)]
    return _core.Group(specs, None if admission is None else admission.kernel())


def _table_spec(config: TableConfig, max_rows: int) -> _core.TableSpec:
    spec = _core.TableSpec(
        config.name,
        serving=config.serving,
        skip_zero=config.skip_zero,
        seed=(config.seed + fnv1a_64(config.name)) % 2**64,  # equal ids of two tables start differently
        nonfinite=config.nonfinite,
        max_rows=max_rows,
        eviction=config.eviction,
    )
    for segment in config.segments:
        spec.add_segment(
            segment.dim, segment.initializer.kernel(), segment.optimizer.kernel(), segment.compressor.kernel()
        )
    spec.set_wide_slots(np.array(config.wide_slots, np.int32))
    spec.set_expiry(config.expire_days, *_by_slot(config.slot_expire_days), config.seconds_between_evictions)
    if config.filters_ids:
        spec.set_admission(config.min_count, *_by_slot(config.slot_min_counts))
    return spec


def _by_slot(values: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(values), np.int32), np.array(list(values.values()), np.int32)


def _row_cap(config: TableConfig) -> int:
    """Returns the rows that fit `max_bytes`; the size of a row is known to the core only, so a probe group is built."""
    if config.max_bytes is None:
        return config.max_rows or 0
    probe = _core.Group([_table_spec(config, 0)], None)
    return max(1, config.max_bytes // probe.row_bytes(0))


def _shared_admission(configs: Sequence[TableConfig]) -> AdmissionFilter | None:
    """Returns the one filter of the group: counts live in the buckets, which all its tables share."""
    filtered = [config for config in configs if config.filters_ids]
    for config in filtered[1:]:
        if config.admission != filtered[0].admission:
            raise InvalidArgumentError(
                f"tables {filtered[0].name!r} and {config.name!r}: tables of a group share one admission filter, got"
                f" {filtered[0].admission!r} and {config.admission!r}; use the same or two groups"
            )
    return filtered[0].admission if filtered else None


class BoundedTimes(NamedTuple):
    """The times of one call as rows take them."""

    times: NDArray[np.int64]
    num_ahead: int
    """Number of times that were set back."""


def bound_times(times: NDArray[np.int64], newest: int) -> BoundedTimes:
    """Bounds the times of one batch: those that are far ahead are set back to the time of the data.

    More than a day beyond `newest` is far ahead. The data stands at `newest` or, if that is later, at the lower median
    of the batch, at most a day beyond `newest`. So a minority of wrong times moves nothing, a batch of nothing else a
    day, and a gap in the data closes day by day. Where no time was seen (0), the median is taken for `newest`, with
    more room if the times lie far apart. The rule itself is in `core/table/time_bound.h`.

    >>> import numpy as np
    >>> bounded = bound_times(np.array([1_700_000_060, 4_102_444_800, 1_700_000_090]), newest=1_700_000_000)
    >>> bounded.times.tolist(), bounded.num_ahead
    ([1700000060, 1700000090, 1700000090], 1)
    """
    bounded = _core.bound_times(times, newest)
    return BoundedTimes(times, 0) if bounded is None else BoundedTimes(*bounded)


class EventClock:
    """Bounds how far one call may move the newest time of a store. Thread-safe.

    Call `bounded` once per batch, before the batch is divided among owners of rows; owners take the times unchanged.
    Times that were set back are counted once the rows have them.
    """

    def __init__(self, newest: Callable[[], int]) -> None:
        self._newest = newest
        """The newest time of all tables and owners."""
        self._lock = threading.Lock()
        self.num_ahead = 0
        """Number of times set back so far."""

    def bounded(self, times: NDArray[np.int64]) -> BoundedTimes:
        """Returns the times as rows take them."""
        return bound_times(times, self._newest())

    def count(self, bounded: BoundedTimes) -> None:
        """Counts times that the rows have taken."""
        if not bounded.num_ahead:
            return
        with self._lock:
            is_first = self.num_ahead == 0
            self.num_ahead += bounded.num_ahead
        if is_first:
            _LOG.warning(
                "%d of %d times of a batch are more than a day ahead of all earlier ones and were set to at most %d;"
                " later occurrences are only counted (stats: times_ahead). One batch advances the expiry clock by at"
                " most a day: if the data has a gap, the next batches close it; otherwise check the data for wrong"
                " times",
                bounded.num_ahead,
                len(bounded.times),
                int(bounded.times.max()),
            )
