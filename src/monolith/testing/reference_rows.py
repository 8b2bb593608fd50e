"""One table as a Python dictionary, with the arithmetic of SGD and Adagrad written plainly in float32.

Nothing here is fast. Each line does what the specification says, in the order of operations that the core uses, so the
two can be compared bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from monolith.errors import InvalidArgumentError
from monolith.ids import slot_v2
from monolith.tables import initializers, row_optimizers
from monolith.tables.schema import SegmentSchema, TableSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monolith.tables.table_config import Segment, TableConfig

SECONDS_PER_DAY = 86400
SMALLEST_DIVISOR = np.float32(2.0**-63)
"""An accumulator of 0 gives a finite step, not 0/0."""
MAX_COUNT = 15
"""Admission counters have 4 bits."""


@dataclass(slots=True)
class Row:
    """What a table knows of one id."""

    weights: NDArray[np.float32]
    state: NDArray[np.float32]
    time: int
    epoch: int
    """Of the last write, for `changes`."""

    def copy(self) -> Row:
        """A row that shares nothing with this one."""
        return Row(self.weights.copy(), self.state.copy(), self.time, self.epoch)

    def payload(self, *, state: bool) -> bytes:
        """As a row block carries it."""
        return self.weights.tobytes() + (self.state.tobytes() if state else b"")


@dataclass(slots=True)
class DictionaryTable:
    """id -> `Row`, with admission counts and tombstones."""

    config: TableConfig
    rows: dict[int, Row] = field(default_factory=dict)
    tombstones: dict[int, int] = field(default_factory=dict)
    """id -> epoch of its removal; an id that came back is not in it."""
    counts: dict[int, int] = field(default_factory=dict)
    """How often ids outside the table were seen, up to 15."""
    newest_time: int = 0

    @property
    def schema(self) -> TableSchema:
        """As the core describes such a table."""
        return TableSchema(
            name=self.config.name,
            serving=False,
            segments=tuple(_segment_schema(segment) for segment in self.config.segments),
        )

    @property
    def dim(self) -> int:
        """Weights of a row."""
        return sum(segment.dim for segment in self.config.segments)

    def is_admitted(self, key: int, count: int) -> bool:
        """Counts an id that is not in the table; true iff it may come in."""
        slot = slot_v2(key)
        threshold = self.config.slot_min_counts.get(slot, self.config.min_count)
        if threshold <= 0:
            return True
        seen = self.counts.get(key, 0)
        self.counts[key] = min(MAX_COUNT, seen + count)
        return seen >= threshold

    def insert(self, key: int, epoch: int) -> Row:
        """A new row with initial weights and state."""
        segments = self.config.segments
        weights = np.concatenate([_initial_weights(segment) for segment in segments])
        state = np.concatenate([_initial_state(segment) for segment in segments])
        row = Row(weights, state, 0, epoch)
        self.rows[key] = row
        self.tombstones.pop(key, None)
        return row

    def update(self, row: Row, gradient: NDArray[np.float32], learning_rates: Sequence[np.float32]) -> None:
        """One optimizer step of every segment."""
        at, state_at = 0, 0
        for segment, learning_rate in zip(self.config.segments, learning_rates, strict=True):
            end, state_end = at + segment.dim, state_at + _state_floats(segment)
            _update_segment(
                segment, row.weights[at:end], row.state[state_at:state_end], gradient[at:end], learning_rate
            )
            at, state_at = end, state_end

    def remove(self, key: int, epoch: int) -> None:
        """Takes an id out and remembers that."""
        del self.rows[key]
        self.tombstones[key] = epoch

    def expired(self, now: int) -> list[int]:
        """Ids whose slot's days have passed since their last update."""
        default = self.config.expire_days
        return [
            key
            for key, row in self.rows.items()
            if now - row.time >= self.config.slot_expire_days.get(slot_v2(key), default) * SECONDS_PER_DAY
        ]

    def take_payload(self, key: int, time: int, payload: bytes, epoch: int) -> None:
        """Writes a row as a full block carries it."""
        values = np.frombuffer(payload, np.float32)
        self.rows[key] = Row(values[: self.dim].copy(), values[self.dim :].copy(), time, epoch)
        self.tombstones.pop(key, None)
        self.newest_time = max(self.newest_time, time)


def _segment_schema(segment: Segment) -> SegmentSchema:
    kind, _ = segment.optimizer.kernel()
    return SegmentSchema(
        dim=segment.dim,
        optimizer=kind,
        state_bytes=4 * _state_floats(segment),
        compressor=segment.compressor.kernel()[0],
        compressed_bytes=4 * segment.dim,
    )


def _initial_weights(segment: Segment) -> NDArray[np.float32]:
    initializer = segment.initializer
    if isinstance(initializer, initializers.Zeros):
        return np.zeros(segment.dim, np.float32)
    if isinstance(initializer, initializers.Ones):
        return np.ones(segment.dim, np.float32)
    if isinstance(initializer, initializers.Constant):
        return np.full(segment.dim, initializer.constant, np.float32)
    raise InvalidArgumentError(f"ReferenceStore knows Zeros, Ones and Constant, got {initializer!r}")


def _state_floats(segment: Segment) -> int:
    if isinstance(segment.optimizer, row_optimizers.Sgd):
        return 0
    if isinstance(segment.optimizer, row_optimizers.Adagrad) and segment.optimizer.hessian_compression_times == 1:
        return segment.dim
    raise InvalidArgumentError(f"ReferenceStore knows Sgd and Adagrad, got {segment.optimizer!r}")


def _initial_state(segment: Segment) -> NDArray[np.float32]:
    if isinstance(segment.optimizer, row_optimizers.Adagrad):
        return np.full(segment.dim, segment.optimizer.initial_accumulator_value, np.float32)
    return np.zeros(0, np.float32)


def _update_segment(
    segment: Segment,
    weights: NDArray[np.float32],
    state: NDArray[np.float32],
    gradient: NDArray[np.float32],
    learning_rate: np.float32,
) -> None:
    """In place. Every operand is float32, so every operation rounds to float32 as the core's does."""
    optimizer = segment.optimizer
    if isinstance(optimizer, row_optimizers.Adagrad):
        decayed = gradient + np.float32(optimizer.weight_decay_factor) * weights
        state += decayed * decayed
        weights -= learning_rate / np.maximum(np.sqrt(state), SMALLEST_DIVISOR) * decayed
    else:
        weights -= learning_rate * gradient
