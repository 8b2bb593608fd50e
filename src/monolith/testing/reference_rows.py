"""One table as a Python dictionary, the initialization and learning of its rows in plain float32, and its row blocks.

Nothing here is fast. Each line follows the specification, in the order of operations that the core uses, so the two can
be compared bit for bit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from monolith.ids import slot_v2
from monolith.tables import NUM_BUCKETS, SegmentSchema, TableSchema, compressors, fnv1a_64, initializers, row_optimizers
from monolith.tables.formats import TRAILER, BlockKind, RowBlock
from monolith.testing.reference_format import (
    BELOW_BUCKET,
    GOLDEN_GAMMA,
    WORD_MASK,
    RowName,
    build_block,
    build_filter_block,
    crc32c,
    mix64,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from monolith.tables import RowOptimizer, Segment, TableConfig

SECONDS_PER_DAY = 86400
MAX_COUNT = 15
"""Admission counters have 4 bits."""
SMALLEST_DIVISOR = np.float32(2.0**-63)
"""An accumulator of 0 gives a finite step, not 0/0."""


@dataclass(slots=True)
class DictionaryRow:
    """The values of one id."""

    weights: NDArray[np.float32]
    state: NDArray[np.float32]
    time: int
    epoch: int
    """Epoch of the last change."""

    def copy(self) -> DictionaryRow:
        """Returns a copy that shares nothing with this row."""
        return DictionaryRow(self.weights.copy(), self.state.copy(), self.time, self.epoch)


class DictionaryTable:
    """Id, by its `RowName`, -> `DictionaryRow`, with admission counts and tombstones."""

    def __init__(self, config: TableConfig) -> None:
        self.config = config
        self.dim = config.dim
        self.contents = TableContents()
        self.num_evicted = 0
        """Number of expired rows removed since the table was created."""
        self.schema = TableSchema(
            name=config.name,
            serving=False,
            segments=tuple(segment_schema(segment) for segment in config.segments),
            wide_slots=tuple(config.wide_slots),
        )
        """Schema, as the core describes such a table."""

    @property
    def rows(self) -> dict[RowName, DictionaryRow]:
        """Id -> its row."""
        return self.contents.rows

    def payload(self, row: DictionaryRow, *, state: bool) -> bytes:
        """Returns a row in the format of a block: complete, or the compressed weights for serving."""
        if state:
            return row.weights.tobytes() + row.state.tobytes()
        ends = np.cumsum([segment.dim for segment in self.config.segments])[:-1]
        parts = zip(self.config.segments, np.split(row.weights, ends), strict=True)
        return b"".join(part.astype(stored_type(segment)).tobytes() for segment, part in parts)

    def slot_of(self, name: RowName) -> int:
        """Returns the number of the slot of a row."""
        if name.key < 0 and self.config.wide_slots:
            return self.config.wide_slots[name.key >> 54 & 511]
        return slot_v2(name.key)

    def is_admitted(self, name: RowName, count: int) -> bool:
        """Counts an id that is not in the table; returns True iff it is admitted."""
        threshold = self.config.slot_min_counts.get(self.slot_of(name), self.config.min_count)
        if threshold <= 0 or not self.config.filters_ids:
            return True
        seen = self.contents.counts.get(name, 0)
        self.contents.counts[name] = min(MAX_COUNT, seen + count)
        return seen >= threshold

    def insert(self, name: RowName, epoch: int) -> DictionaryRow:
        """Inserts a row with initial weights and state."""
        segments, row_seed = self.config.segments, self._row_seed(name)
        weights = [initial_weights(segment, combine(row_seed, number)) for number, segment in enumerate(segments)]
        state = [initial_state(segment) for segment in segments]
        row = DictionaryRow(np.concatenate(weights), np.concatenate(state), 0, epoch)
        self.put(name, row)
        return row

    def _row_seed(self, name: RowName) -> int:
        # Equal ids of two tables have different initial weights.
        seed = self.config.seed + fnv1a_64(self.config.name)
        if name.key < 0 and self.config.wide_slots:
            return combine(combine(seed, name.key & BELOW_BUCKET), self.slot_of(name))
        return combine(seed, name.key)

    def put(self, name: RowName, row: DictionaryRow) -> None:
        """Writes a row, replacing an existing one or a tombstone."""
        self.rows[name] = row
        self.contents.tombstones.pop(name, None)

    def update(
        self,
        row: DictionaryRow,
        gradient: NDArray[np.float32],
        *,
        learning_rates: Sequence[np.float32],
        latest: NDArray[np.float32] | None,
    ) -> None:
        """Makes one optimizer step of every segment."""
        at, state_at = 0, 0
        for segment, learning_rate in zip(self.config.segments, learning_rates, strict=True):
            end, state_end = at + segment.dim, state_at + len(initial_state(segment))
            learn(
                segment,
                row.weights[at:end],
                row.state[state_at:state_end],
                gradient[at:end],
                learning_rate=learning_rate,
                latest=None if latest is None else latest[at:end],
            )
            at, state_at = end, state_end

    def expired(self, now: int) -> list[RowName]:
        """Returns the ids whose slot's days have passed since their last update."""
        return [name for name, row in self.rows.items() if self.has_expired(name, row, now)]

    def has_expired(self, name: RowName, row: DictionaryRow, now: int) -> bool:
        """Returns whether its slot's days have passed since its last update."""
        days = self.config.slot_expire_days.get(self.slot_of(name), self.config.expire_days)
        return now - row.time >= days * SECONDS_PER_DAY

    def take_payload(self, name: RowName, time: int, payload: bytes, epoch: int) -> None:
        """Writes a row from the payload of a full block."""
        values = np.frombuffer(payload, np.float32)
        self.put(name, DictionaryRow(values[: self.dim].copy(), values[self.dim :].copy(), time, epoch))
        self.contents.newest_time = max(self.contents.newest_time, time)

    def frozen(self) -> DictionaryTable:
        """Returns a copy of the table that shares no mutable state with this one."""
        copy = DictionaryTable(self.config)
        copy.contents = self.contents.copy()
        return copy


@dataclass(slots=True)
class TableContents:
    """All mutable state of a table."""

    rows: dict[RowName, DictionaryRow] = field(default_factory=dict)
    tombstones: dict[RowName, int] = field(default_factory=dict)
    """Id -> epoch of its removal; without ids that were inserted again."""
    counts: dict[RowName, int] = field(default_factory=dict)
    """Number of occurrences of ids outside the table, up to 15."""
    newest_time: int = 0
    """Unix seconds of the newest update, including those of ids that were not admitted."""

    def copy(self) -> TableContents:
        """Returns a copy that shares nothing with these contents."""
        rows = {name: row.copy() for name, row in self.rows.items()}
        return TableContents(rows, dict(self.tombstones), dict(self.counts), self.newest_time)


def segment_schema(segment: Segment) -> SegmentSchema:
    """Returns the schema, as the core describes such a segment."""
    kind, _ = segment.optimizer.kernel()
    return SegmentSchema(
        dim=segment.dim,
        optimizer=kind,
        state_bytes=4 * len(initial_state(segment)),
        compressor=segment.compressor.kernel()[0],
        compressed_bytes=np.dtype(stored_type(segment)).itemsize * segment.dim,
    )


def stored_type(segment: Segment) -> str:
    """Returns the stored type of the weights of a serving row."""
    if isinstance(segment.compressor, compressors.Fp32):
        return "<f4"
    if isinstance(segment.compressor, compressors.Fp16):
        return "<f2"
    raise InvalidArgumentError(f"ReferenceStore supports the compressors Fp32 and Fp16, got {segment.compressor!r}")


def initial_weights(segment: Segment, seed: int) -> NDArray[np.float32]:
    """Returns the weights of a new row; `seed` belongs to this segment of this id in this table."""
    initializer = segment.initializer
    if isinstance(initializer, initializers.Zeros):
        return np.zeros(segment.dim, np.float32)
    if isinstance(initializer, initializers.Ones):
        return np.ones(segment.dim, np.float32)
    if isinstance(initializer, initializers.Constant):
        return np.full(segment.dim, initializer.constant, np.float32)
    if isinstance(initializer, initializers.RandomUniform):
        low, high = np.float32(initializer.minval), np.float32(initializer.maxval)
        draws = np.array([_draw(seed, number) for number in range(segment.dim)], np.float32)
        values: NDArray[np.float32] = np.minimum(low + draws * (high - low), np.nextafter(high, low))
        return values
    raise InvalidArgumentError(f"ReferenceStore supports Zeros, Ones, Constant and RandomUniform, got {initializer!r}")


def combine(first: int, second: int) -> int:
    """Combines two words to one; the order matters."""
    return mix64((first + GOLDEN_GAMMA * (second + 1)) & WORD_MASK)


def _draw(seed: int, number: int) -> float:
    """Draws uniformly from [0, 1) with 24 bits; a word of 64 bits serves two draws."""
    word = combine(seed, number // 2)
    return (word >> 40 if number % 2 else word & 0xFFFFFF) * 2.0**-24


def initial_state(segment: Segment) -> NDArray[np.float32]:
    """Returns the initial optimizer state."""
    optimizer = _base(segment.optimizer)
    if isinstance(optimizer, row_optimizers.Sgd):
        return np.zeros(0, np.float32)
    if isinstance(optimizer, row_optimizers.Adagrad) and optimizer.hessian_compression_times == 1:
        return np.full(segment.dim, optimizer.initial_accumulator_value, np.float32)
    raise InvalidArgumentError(
        f"ReferenceStore supports Sgd and Adagrad, also under DelayCompensated, got {segment.optimizer!r}"
    )


def learn(
    segment: Segment,
    weights: NDArray[np.float32],
    state: NDArray[np.float32],
    gradient: NDArray[np.float32],
    *,
    learning_rate: np.float32,
    latest: NDArray[np.float32] | None,
) -> None:
    """Makes one optimizer step in place. Every operand is float32, so every operation rounds as the core's does."""
    if isinstance(segment.optimizer, row_optimizers.DelayCompensated) and latest is not None:
        gradient = gradient + np.float32(segment.optimizer.lambda_) * (gradient * gradient) * (weights - latest)
    optimizer = _base(segment.optimizer)
    if isinstance(optimizer, row_optimizers.Adagrad):
        decayed = gradient + np.float32(optimizer.weight_decay_factor) * weights
        state += decayed * decayed
        weights -= learning_rate / np.maximum(np.sqrt(state), SMALLEST_DIVISOR) * decayed
    else:
        weights -= learning_rate * gradient


def _base(optimizer: RowOptimizer) -> RowOptimizer:
    return optimizer.base if isinstance(optimizer, row_optimizers.DelayCompensated) else optimizer


def changed_blocks(tables: Sequence[DictionaryTable], *, since: int, epoch: int, state: bool) -> Iterator[RowBlock]:
    """Yields everything changed after an epoch, by bucket and table, tombstones before rows; 0 is before everything."""
    kind = BlockKind.FULL if state else BlockKind.SERVING
    parts: dict[tuple[int, int, bool], list[tuple[int, int, bytes]]] = {}  # by bucket, table, then tombstones first
    for number, table in enumerate(tables):
        for name, removed in table.contents.tombstones.items():
            if removed > since:
                parts.setdefault((name.bucket, number, False), []).append((name.key, removed, b""))
        for name, row in table.rows.items():
            if row.epoch > since:
                item = (name.key, row.time, table.payload(row, state=state))
                parts.setdefault((name.bucket, number, True), []).append(item)
    for bucket, number, is_rows in sorted(parts):
        yield build_block(
            kind if is_rows else BlockKind.TOMBSTONE,
            digest=tables[number].schema.digest,
            table=number,
            bucket=bucket,
            epoch=epoch,
            rows=parts[bucket, number, is_rows],
        )


def all_blocks(tables: Sequence[DictionaryTable], *, epoch: int, state: bool) -> list[RowBlock]:
    """Returns all blocks by bucket: admission counts, then by table tombstones and rows."""
    filters = [
        build_filter_block(bucket=bucket, epoch=epoch, payload=_filter_bytes(tables, bucket))
        for bucket in {name.bucket for table in tables for name in table.contents.counts}
    ]
    blocks = [*filters, *changed_blocks(tables, since=0, epoch=epoch, state=state)]
    return sorted(blocks, key=lambda block: block.bucket)  # stable: keeps the order inside a bucket


def check_block(tables: Sequence[DictionaryTable], block: RowBlock, *, table: int | None = None) -> None:
    """Raises for damaged blocks and for other tables; `table` is the target of its rows, if not the table it names."""
    body, trailer = block.data[: -TRAILER.size], block.data[-TRAILER.size :]
    if TRAILER.unpack(trailer) != (crc32c(body), 0):
        raise DataLossError(f"{block!r}: checksum does not match")
    if block.kind is BlockKind.FILTER:
        return
    number = block.table if table is None else table
    if number >= len(tables) or tables[number].schema.digest != block.digest:
        raise FailedPreconditionError(f"{block!r}: schema does not match this store")
    if block.kind is BlockKind.SERVING:
        raise FailedPreconditionError(f"{block!r}: ReferenceStore takes full rows, got serving rows")


def load_block(table: DictionaryTable, block: RowBlock, *, epoch: int, keeps_removals: bool) -> None:
    """Loads rows or tombstones."""
    for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True):
        name = RowName(block.bucket, key)
        if block.kind is BlockKind.FULL:
            table.take_payload(name, time, payload.tobytes(), epoch)
            continue
        table.rows.pop(name, None)
        if keeps_removals:
            table.contents.tombstones[name] = epoch


def load_filter(tables: Sequence[DictionaryTable], block: RowBlock) -> None:
    """Loads the admission counts of a bucket."""
    counts_by_table = json.loads(block.payload.tobytes())
    for table, counts in zip(tables, counts_by_table, strict=True):
        kept = {name: seen for name, seen in table.contents.counts.items() if name.bucket != block.bucket}
        table.contents.counts = kept | {RowName(block.bucket, int(key)): seen for key, seen in counts.items()}


def clear_buckets(tables: Sequence[DictionaryTable], buckets: range) -> None:
    """Clears rows, tombstones and counts of some buckets; with all buckets the newest time, too."""
    for table in tables:
        contents = table.contents
        for values in (contents.rows, contents.tombstones, contents.counts):
            for name in [name for name in values if name.bucket in buckets]:
                del values[name]
        if len(buckets) == NUM_BUCKETS:
            contents.newest_time = 0


def _filter_bytes(tables: Sequence[DictionaryTable], bucket: int) -> bytes:
    counts = [
        {name.key: seen for name, seen in table.contents.counts.items() if name.bucket == bucket} for table in tables
    ]
    return json.dumps(counts).encode()
