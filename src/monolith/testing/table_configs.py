"""A minimal table config for tests."""

from __future__ import annotations

from monolith.tables.compressors import Fp16, Fp32
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd
from monolith.tables.table_config import Segment, TableConfig

__all__ = ["generate_test_hash_table_config"]


def generate_test_hash_table_config(dim: int = 2, use_float16: bool = False, learning_rate: float = 1.0) -> TableConfig:
    """Returns a config of one segment that starts at zero and learns by SGD: expected weights are easy to compute.

    Args:
        dim: Weights of a row.
        use_float16: Whether serving rows have half precision instead of float32.
        learning_rate: Learning rate of SGD: a gradient g moves a weight by ``-learning_rate * g``.

    >>> generate_test_hash_table_config(dim=4).dim
    4
    """
    segment = Segment(
        dim=dim,
        initializer=Zeros(),
        optimizer=Sgd(learning_rate=learning_rate),
        compressor=Fp16() if use_float16 else Fp32(),
    )
    return TableConfig(segments=[segment])
