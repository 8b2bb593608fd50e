"""What data is made of: ids per feature, how many different ones, labels, times, and what a table would take."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith import ids
from monolith.cli._data.opening import examples_of
from monolith.data import INVALID_LABEL, Column, FirstBytes, Floats, Ids, Ints, Label, LineIdField, NestedIds, Parser
from monolith.data import LABEL_FEATURE as LABEL
from monolith.data.records import SampleFormat
from monolith.tables import HashTable, Segment, TableConfig, row_optimizers
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy.typing as npt
    from torch import Tensor

    from monolith.data import Batch, ColumnValues
    from monolith.data.records import BadRecords, Records

_BITS = 14
_NUM_REGISTERS = 1 << _BITS


class UniqueCounter:
    """Counts different int64 numbers: exactly up to `limit`, then by HyperLogLog, 0.8 % off as a rule.

    >>> counter = UniqueCounter(limit=10)
    >>> counter.add(np.array([3, 1, 3], dtype=np.int64))
    >>> counter.count, counter.is_exact
    (2, True)
    """

    def __init__(self, limit: int = 5_000_000) -> None:
        self._limit = limit
        self._seen: npt.NDArray[np.int64] | None = np.empty(0, np.int64)
        self._registers = np.zeros(_NUM_REGISTERS, np.uint8)

    @property
    def is_exact(self) -> bool:
        """Whether `count` is the number itself."""
        return self._seen is not None

    @property
    def count(self) -> int:
        """How many there are, or about how many."""
        return len(self._seen) if self._seen is not None else round(self._estimate())

    def add(self, numbers: npt.NDArray[np.int64]) -> None:
        """Adds numbers."""
        if not len(numbers):
            return
        numbers = np.unique(numbers)
        self._note(numbers)
        if self._seen is not None:
            merged = np.union1d(self._seen, numbers)
            self._seen = merged if len(merged) <= self._limit else None

    def _note(self, numbers: npt.NDArray[np.int64]) -> None:
        hashed = _mixed(numbers.view(np.uint64))
        places = (hashed >> np.uint64(64 - _BITS)).astype(np.int64)
        rest = (hashed << np.uint64(_BITS)) | np.uint64(1 << (_BITS - 1))
        ranks = (64 - _bit_length(rest) + 1).astype(np.uint8)
        np.maximum.at(self._registers, places, ranks)

    def _estimate(self) -> float:
        m = float(_NUM_REGISTERS)
        raw = 0.7213 / (1 + 1.079 / m) * m * m / np.sum(2.0 ** -self._registers.astype(np.float64))
        empty = int(np.count_nonzero(self._registers == 0))
        return float(m * np.log(m / empty)) if raw <= 2.5 * m and empty else float(raw)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the finalizer of splitmix64: ids have structure, registers must not."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _bit_length(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Of each number; exact, which a logarithm of large numbers is not."""
    high = numbers >> np.uint64(32)
    low = numbers & np.uint64(0xFFFFFFFF)
    of_high = np.frexp(high.astype(np.float64))[1]
    of_low = np.frexp(low.astype(np.float64))[1]
    return np.where(high > 0, of_high + 32, of_low).astype(np.int64)


_COLUMNS: dict[str, type[Column]] = {
    "fid_v1_list": Ids,
    "fid_v2_list": Ids,
    "fid_v1_lists": NestedIds,
    "fid_v2_lists": NestedIds,
    "int64_list": Ints,
    "int64_value": Ints,
    "float_list": Floats,
    "float_value": Floats,
    "double_list": Floats,
    "double_value": Floats,
    "bytes_list": FirstBytes,
    "bytes_value": FirstBytes,
}
_IDS, _INTS, _REALS, _BYTES = "ids", "integers", "reals", "bytes"
_NAMES = {Ids: _IDS, NestedIds: _IDS, Ints: _INTS, Floats: _REALS, FirstBytes: _BYTES}
_LOOKED_AT_FIRST, _LOOKED_AT_LATER = 1000, 64
"""Number of samples of a block, spread over it, that are scanned for features."""
_PROBE_ROWS = 1 << 17
"""Enough rows to make over-allocation of a table negligible."""
_MOST_SLOTS = 8


@dataclass(slots=True)
class FeatureStatistics:
    """Counts of one feature."""

    kind: str
    unique: UniqueCounter
    rows: int = 0
    """Samples that have it."""
    values: int = 0
    longest: int = 0
    """Values of the sample that has most."""
    slots: dict[int, int] = field(default_factory=dict)
    """Slot of v2 ids -> values."""

    def add(self, column: ColumnValues) -> None:
        """Adds a column of a batch."""
        if isinstance(column, list):
            lengths = np.array([bool(value) for value in column], np.int64)
        elif isinstance(column, Ragged):
            lengths = _lengths(column)
            self._add_values(column.flat_values)
        else:
            lengths = np.full(len(column), column[0].numel() if len(column) else 0, np.int64)
            self._add_values(column.reshape(-1))
        self.rows += int(np.count_nonzero(lengths))
        self.values += int(lengths.sum())
        self.longest = max(self.longest, int(lengths.max(initial=0)))

    def _add_values(self, values: Tensor) -> None:
        if values.dtype is not torch.int64:
            return
        numbers = values.numpy()
        self.unique.add(numbers)
        if self.kind == _IDS:
            slots, counts = np.unique(ids.slot_v2(numbers), return_counts=True)
            for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
                self.slots[slot] = self.slots.get(slot, 0) + count


class Statistics:
    """Counts batch by batch.

    Args:
        exact_limit: Different values of a feature that are counted one by one; beyond it, they are estimated.
        ids: Features of integers of a ``tf.train.Example`` that are ids.
    """

    def __init__(self, *, exact_limit: int = 5_000_000, ids: Collection[str] = ()) -> None:
        self._exact_limit = exact_limit
        self._ids = ids
        self.samples = 0
        self.features: dict[str, FeatureStatistics] = {}
        self.late: set[str] = set()
        """Features that came up after reading had begun: what was read before is not in their counts."""
        self.uncounted: set[str] = set()
        """Features of a kind that is not looked into."""
        self._labels: dict[int, list[float]] = {}
        self._times: tuple[int, int] | None = None

    def add_records(self, blocks: Iterable[Records], sample: SampleFormat, bad: BadRecords) -> Iterable[int]:
        """Adds blocks of records; yields the number of samples of each."""
        columns: dict[str, Column] = {}
        width, parser = 1, None
        for number, block in enumerate(blocks):
            discovered, labels = self._discover(block, sample, _LOOKED_AT_LATER if number else _LOOKED_AT_FIRST)
            new = {name: column for name, column in discovered.items() if name not in columns}
            if parser is None or new or labels > width:
                self.late |= new.keys() if number else set()
                columns |= new
                width = max(width, labels)
                parser = Parser(sample, [*columns.values(), *_fixed_columns(columns, sample, width)], bad=bad)
            batch = parser.parse(block)
            self.add_batch(batch, {name: _NAMES[type(column)] for name, column in columns.items()})
            yield batch.num_rows

    def add_batch(self, batch: Batch, kinds: dict[str, str]) -> None:
        """Adds a batch: labels and times under their own names, the features of these kinds."""
        self.samples += batch.num_rows
        for name, kind in kinds.items():
            if name not in self.features:
                self.features[name] = FeatureStatistics(kind, UniqueCounter(self._exact_limit))
            self.features[name].add(batch[name])
        for name in {LABEL, "label"} & (batch.keys() - kinds.keys()):
            self._add_labels(batch[name])
        for name in {"req_time", "__REQ_TIME__"} & (batch.keys() - kinds.keys()):
            self._add_times(batch[name])

    def report(self, *, dim: int, optimizer: str) -> dict[str, Any]:
        """Everything as plain values, and what a table of the ids would take."""
        bytes_per_id = table_bytes_per_id(dim, optimizer)
        features = {name: self._of_feature(feature, bytes_per_id) for name, feature in sorted(self.features.items())}
        id_features = [feature for feature in features.values() if feature["kind"] == _IDS]
        unique = sum(feature["unique"] for feature in id_features)
        return {
            "samples": self.samples,
            "labels": [_of_label(*self._labels[task]) for task in sorted(self._labels)],
            "req_time": None if self._times is None else {"first": self._times[0], "last": self._times[1]},
            "features": features,
            "table": {
                "dim": dim,
                "optimizer": optimizer,
                "bytes_per_id": bytes_per_id,
                "ids": unique,
                "bytes": round(unique * bytes_per_id),
            },
            "late_features": sorted(self.late),
            "uncounted_features": sorted(self.uncounted),
        }

    def _of_feature(self, feature: FeatureStatistics, bytes_per_id: float) -> dict[str, Any]:
        values: dict[str, Any] = {
            "kind": feature.kind,
            "samples_with": feature.rows,
            "values": feature.values,
            "values_per_sample": round(feature.values / self.samples, 3) if self.samples else 0.0,
            "longest": feature.longest,
        }
        if feature.kind in {_IDS, _INTS}:
            values |= {"unique": feature.unique.count, "unique_is_exact": feature.unique.is_exact}
        if feature.kind == _IDS:
            most = sorted(feature.slots.items(), key=lambda item: -item[1])[:_MOST_SLOTS]
            values["slots"] = {str(slot): count for slot, count in most}
            values["num_slots"] = len(feature.slots)
            values["table_bytes"] = round(feature.unique.count * bytes_per_id)
        return values

    def _discover(self, block: Records, sample: SampleFormat, count: int) -> tuple[dict[str, Column], int]:
        """Returns the features of some samples, and how many labels one has at most."""
        columns: dict[str, Column] = {}
        labels = 0
        for payload in block[:: max(1, len(block) // count)]:
            for example in examples_of(payload, sample, ids=self._ids):
                labels = max(labels, len(example.label))
                for named in example.named_feature:
                    kind = named.feature.WhichOneof("type")
                    if kind in _COLUMNS:
                        columns.setdefault(named.name, _COLUMNS[kind](named.name))
                    elif kind is not None:
                        self.uncounted.add(named.name)
        return columns, labels

    def _add_labels(self, column: ColumnValues) -> None:
        if isinstance(column, Ragged):
            values = column.to_padded(length=int(_lengths(column).max(initial=0)), fill=INVALID_LABEL).numpy()
        elif isinstance(column, list):
            return
        else:
            values = column.reshape(len(column), -1).numpy()
        for task in range(values.shape[1]):
            valid = values[:, task][values[:, task] != np.float32(INVALID_LABEL)].astype(np.float64)
            sums = self._labels.setdefault(task, [0.0, 0.0, 0.0, 0.0])
            sums[0] += len(valid)
            sums[1] += np.count_nonzero(valid > 0)
            sums[2] += float(valid.sum())
            sums[3] += values.shape[0] - len(valid)

    def _add_times(self, column: ColumnValues) -> None:
        if isinstance(column, list | Ragged):
            return
        times = column[column > 0]
        if len(times):
            first, last = int(times.min()), int(times.max())
            before = self._times or (first, last)
            self._times = (min(first, before[0]), max(last, before[1]))


@functools.cache
def table_bytes_per_id(dim: int, optimizer: str) -> float:
    """Returns the bytes per id of a table, measured on a filled table: row, state, index and overhead."""
    known = {name.lower(): getattr(row_optimizers, name) for name in row_optimizers.__all__}
    chosen = known.get(optimizer.replace("_", "").lower())
    if chosen is None or not issubclass(chosen, row_optimizers.RowOptimizer) or chosen is row_optimizers.RowOptimizer:
        raise ValueError(f"--optimizer must be a row optimizer such as adagrad, adam, ftrl or sgd, got {optimizer!r}")
    table = HashTable(TableConfig([Segment(dim, optimizer=chosen())]))
    step = max(1, (1 << 24) // (4 * dim))
    for begin in range(0, _PROBE_ROWS, step):
        numbers = torch.arange(begin, min(begin + step, _PROBE_ROWS))
        table.assign(numbers, torch.zeros(len(numbers), dim), time=0)
    stats = table.stats()
    # Unused memory differs a little from table to table, so a process measures only one.
    return round(float(stats["row_bytes"] + stats["index_bytes"] + stats["other_bytes"]) / _PROBE_ROWS, 1)


def _fixed_columns(columns: dict[str, Column], sample: SampleFormat, width: int) -> list[Column]:
    label = Label("label" if sample is SampleFormat.TF_EXAMPLE else LABEL, width=width)
    if "req_time" in columns or sample is SampleFormat.TF_EXAMPLE:
        return [label]
    return [label, LineIdField("req_time")]


def _lengths(column: Ragged) -> Any:
    """Values of each row, through all levels."""
    splits, values = column.row_splits, column.values
    while isinstance(values, Ragged):
        splits, values = values.row_splits[splits], values.values
    return (splits[1:] - splits[:-1]).numpy()


def _of_label(valid: float, positive: float, total: float, missing: float) -> dict[str, Any]:
    return {
        "samples": int(valid),
        "missing": int(missing),
        "positive_rate": positive / valid if valid else None,
        "mean": total / valid if valid else None,
    }
