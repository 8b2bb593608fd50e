"""Initialization and learning of the rows of the reference, in plain float32.

Nothing here is fast. Each line follows the specification, in the order of operations that the core uses, so the two can
be compared bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith.errors import InvalidArgumentError
from monolith.tables import compressors, initializers, row_optimizers
from monolith.tables.schema import SegmentSchema
from monolith.testing.reference_format import GOLDEN_GAMMA, WORD_MASK, mix64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from monolith.tables.row_optimizers import RowOptimizer
    from monolith.tables.table_config import Segment

SMALLEST_DIVISOR = np.float32(2.0**-63)
"""An accumulator of 0 gives a finite step, not 0/0."""


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
