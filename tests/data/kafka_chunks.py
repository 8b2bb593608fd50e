"""Chunks of messages from their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monolith.data.kafka import Partition
from monolith.data.kafka.messages import Chunk


def chunk_of(partition: Partition, values: Sequence[bytes | None], offsets: npt.NDArray[np.int64]) -> Chunk:
    """A chunk whose values lie end to end in a buffer of its own."""
    lengths = np.array([-1 if value is None else len(value) for value in values], np.int64)
    sizes = np.maximum(lengths, 0)
    joined = np.frombuffer(b"".join(filter(None, values)), np.uint8)
    return Chunk(partition, joined, np.cumsum(sizes) - sizes, lengths, offsets)
