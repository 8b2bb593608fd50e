"""What a table is made of, as frozen values that are checked when they are built."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

from monolith.config import Config, config
from monolith.errors import InvalidArgumentError
from monolith.ids import MAX_SLOT_NUMBER
from monolith.tables.compressors import Compressor, Fp32
from monolith.tables.filters import AdmissionFilter, SlidingHashFilter
from monolith.tables.initializers import Initializer, Zeros
from monolith.tables.row_optimizers import RowOptimizer, Sgd
from monolith.tables.slot_keys import MAX_WIDE_SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MAX_DIM = 1 << 16
"""Weights of one segment; a row has to fit a memory block of the core."""
NEVER_DAYS = 36500
"""`expire_days` of tables whose rows stay."""
_MAX_DAYS = 1 << 20
"""Later than any 32-bit time, and days * 86400 stays far from overflow."""


@config
class Segment(Config):
    """Consecutive dimensions of a row that start, learn and are compressed alike.

    >>> Segment(dim=16).dim
    16
    """

    dim: int = field(kw_only=False)
    """Number of weights, >= 1."""
    initializer: Initializer = field(default_factory=Zeros)
    """The first weights of a new row."""
    optimizer: RowOptimizer = field(default_factory=Sgd)
    """How the weights learn; it also gives the learning rate when a call names none."""
    compressor: Compressor = field(default_factory=Fp32)
    """How a serving row keeps the weights, and what training sees of that."""


@config
class TableConfig(Config):
    """One table: a row per id, made of segments laid end to end.

    >>> from monolith.tables.row_optimizers import Adagrad
    >>> TableConfig(segments=[Segment(16, optimizer=Adagrad(learning_rate=0.05)), Segment(1)], name="user").dim
    17
    """

    segments: Sequence[Segment] = field(kw_only=False)
    """At least one."""
    name: str = "table"
    """Used in messages and files, and to order the tables of a group."""

    expire_days: int = NEVER_DAYS
    """A row not updated for this number of days is removed; 0 removes every row. Default: 100 years."""
    slot_expire_days: Mapping[int, int] = field(default_factory=dict)
    """Other values of `expire_days` by slot (bits 48..62 of the id)."""
    wide_slots: Sequence[int] = ()
    """Numbers of slots that share the table and take any int64 as an id, at most 512 (`docs/formats/buckets.md`).
    Empty: every key is an id by itself. `Embeddings` fills it in."""

    min_count: int = 0
    """An id gets a row after this many occurrences; 0 admits every id immediately."""
    slot_min_counts: Mapping[int, int] = field(default_factory=dict)
    """Other thresholds by slot."""
    admission: AdmissionFilter | None = field(default_factory=SlidingHashFilter)
    """How occurrences are counted; made only if some threshold is above 0. Tables of a group share one filter."""

    nonfinite: Literal["raise", "skip", "apply"] = "raise"
    """What to do with a NaN or infinite gradient: reject the call, skip the row, or apply the gradient."""

    max_rows: int | None = None
    """Above this number of rows, rows are removed by `eviction` as new ones are inserted. None: no cap."""
    max_bytes: int | None = None
    """The same cap as memory of rows; turned into a number of rows."""
    eviction: Literal["lru", "lfu"] = "lru"
    """Which rows a cap removes: least recently or least frequently updated."""

    serving: bool = False
    """Keep rows compressed and without optimizer state; such a table cannot learn."""
    skip_zero: bool = False
    """Serving only: do not store all-zero rows, they read as zeros anyway."""

    seed: int = 0
    """Seed of initializers, stochastic rounding and the probabilistic filter."""
    initial_capacity: int = 1
    """Rows to expect. Kept for configs of ByteDance Monolith: tables grow in small steps and need no preset size."""
    evict_every_seconds: float | None = None
    """Seconds of event time within which updates scan every row once and remove those that have expired. None: an
    hour for each day of the table's shortest `expire_days`, and nothing where that is 100 years; 0: only `evict`
    removes rows."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", tuple(self.segments))
        object.__setattr__(self, "slot_expire_days", {int(k): int(v) for k, v in self.slot_expire_days.items()})
        object.__setattr__(self, "slot_min_counts", {int(k): int(v) for k, v in self.slot_min_counts.items()})
        object.__setattr__(self, "wide_slots", tuple(sorted({int(slot) for slot in self.wide_slots})))
        _check_segments(self)
        _check_wide_slots(self)
        _check_expiry(self)
        _check_admission(self)
        _check_limits(self)

    @property
    def dim(self) -> int:
        """Weights of a row."""
        return sum(segment.dim for segment in self.segments)

    @property
    def filters_ids(self) -> bool:
        """True iff some id has to be seen more than once before it gets a row."""
        if self.admission is None or self.admission.kernel() is None:
            return False
        return any(count > 0 for count in (self.min_count, *self.slot_min_counts.values()))

    @property
    def seconds_between_evictions(self) -> int:
        """Event time within which updates scan every row once; 0: they do not."""
        shortest = min((self.expire_days, *self.slot_expire_days.values()))
        if shortest >= NEVER_DAYS:
            return 0
        if self.evict_every_seconds is None:
            return 3600 * max(1, shortest)
        return math.ceil(self.evict_every_seconds)

    @property
    def uses_latest(self) -> bool:
        """True iff an update of its rows needs the rows as the worker saw them (`DelayCompensated`)."""
        parameters = [segment.optimizer.kernel()[1] for segment in self.segments]
        return any(values.get("delay_compensation_lambda", 0.0) != 0.0 for values in parameters)

    def learning_rates_at(self, step: int) -> list[float]:
        """Returns one learning rate per segment, from its optimizer, for this global step."""
        return [segment.optimizer.learning_rate_at(step) for segment in self.segments]


def sorted_by_name(configs: Mapping[str, TableConfig]) -> tuple[TableConfig, ...]:
    """Returns the tables of a group in the order of their names, each named as it is listed."""
    if not configs:
        raise InvalidArgumentError("a group needs at least one table, got none")
    return tuple(
        config if config.name == name else replace(config, name=name) for name, config in sorted(configs.items())
    )


def _refuse(table: TableConfig, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"table {table.name!r}: {what}")


def _check_segments(table: TableConfig) -> None:
    if not table.name or any(character in table.name for character in ";=\n"):
        raise _refuse(table, "name must be non-empty, without ';', '=' and line breaks")
    if not table.segments:
        raise _refuse(table, "segments must not be empty; write segments=[Segment(dim=16)]")
    for number, segment in enumerate(table.segments):
        if not isinstance(segment, Segment):
            raise TypeError(f"table {table.name!r}: segments must be Segment(...), got {segment!r} at {number}")
        if segment.dim <= 0:
            raise _refuse(table, f"dim must be > 0, got {segment.dim}")
        if segment.dim > _MAX_DIM:
            raise _refuse(table, f"dim must be <= {_MAX_DIM}, got {segment.dim}")
        _check_parts(table, segment)


def _check_parts(table: TableConfig, segment: Segment) -> None:
    parts = (
        ("initializer", segment.initializer, Initializer),
        ("optimizer", segment.optimizer, RowOptimizer),
        ("compressor", segment.compressor, Compressor),
    )
    for name, part, kind in parts:
        if not isinstance(part, kind):
            raise TypeError(f"table {table.name!r}: {name} must be one of monolith's {name}s, got {part!r}")
    if segment.optimizer.kernel()[0] == "batch_softmax" and segment.dim != 1:
        raise _refuse(table, f"BatchSoftmax needs a segment of dim 1, got {segment.dim}")


def _check_expiry(table: TableConfig) -> None:
    _check_slots(table, "slot_expire_days", table.slot_expire_days)
    for name, days in (("expire_days", table.expire_days), *_named("slot_expire_days", table.slot_expire_days)):
        if not 0 <= days <= _MAX_DAYS:
            raise _refuse(table, f"{name} must be days in [0, {_MAX_DAYS}], got {days}")


def _check_admission(table: TableConfig) -> None:
    if table.admission is not None and not isinstance(table.admission, AdmissionFilter):
        raise TypeError(
            f"table {table.name!r}: admission must be one of monolith's filters or None, got {table.admission!r}"
        )
    _check_slots(table, "slot_min_counts", table.slot_min_counts)
    highest = None if table.admission is None else table.admission.max_threshold
    for name, count in (("min_count", table.min_count), *_named("slot_min_counts", table.slot_min_counts)):
        if count < 0:
            raise _refuse(table, f"{name} must be >= 0, got {count}")
        if count > 0 and highest is not None and count > highest:
            kind = type(table.admission).__name__
            raise _refuse(table, f"{name} must be <= {highest} for {kind}, which counts no further, got {count}")


def _check_limits(table: TableConfig) -> None:
    if table.nonfinite not in {"raise", "skip", "apply"}:
        raise _refuse(table, f"nonfinite must be 'raise', 'skip' or 'apply', got {table.nonfinite!r}")
    if table.eviction not in {"lru", "lfu"}:
        raise _refuse(table, f"eviction must be 'lru' or 'lfu', got {table.eviction!r}")
    if table.max_rows is not None and table.max_rows <= 0:
        raise _refuse(table, f"max_rows must be > 0 or None, got {table.max_rows}")
    if table.max_bytes is not None and table.max_bytes <= 0:
        raise _refuse(table, f"max_bytes must be > 0 or None, got {table.max_bytes}")
    if table.max_rows is not None and table.max_bytes is not None:
        raise _refuse(table, "give max_rows or max_bytes, not both")
    if table.skip_zero and not table.serving:
        raise _refuse(table, "Only EntryConfig_EntryType_SERVING supports skip_zero_embedding!")
    if not -(2**63) <= table.seed < 2**64:
        raise _refuse(table, f"seed must fit 64 bits, got {table.seed}")
    if table.initial_capacity < 0:
        raise _refuse(table, f"initial_capacity must be >= 0, got {table.initial_capacity}")
    seconds = table.evict_every_seconds
    if seconds is not None and not 0 <= seconds < 2**32:
        raise _refuse(table, f"evict_every_seconds must be in [0, 2^32) or None, got {seconds}")


def _check_wide_slots(table: TableConfig) -> None:
    _check_slots(table, "wide_slots", table.wide_slots)
    if len(table.wide_slots) > MAX_WIDE_SLOTS:
        raise _refuse(table, f"wide_slots: at most {MAX_WIDE_SLOTS} fit one table, got {len(table.wide_slots)}")


def _check_slots(table: TableConfig, name: str, values: Iterable[int]) -> None:
    for slot in values:
        if not 0 <= slot < MAX_SLOT_NUMBER:
            raise _refuse(table, f"{name}: slot must be in [0, {MAX_SLOT_NUMBER}), got {slot}")


def _named(name: str, values: Mapping[int, int]) -> list[tuple[str, int]]:
    return [(f"{name} of slot {slot}", value) for slot, value in values.items()]
