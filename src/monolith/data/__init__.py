"""How training data reaches a model.

May import: `tensors`, `dependence`, `errors` and torch. Read `prefetch` for batches made ahead of their use.
"""

from __future__ import annotations

from monolith.data.prefetch import (
    FIFOQueue,
    MultiFIFOQueue,
    MultiQueueRunner,
    PaddingFIFOQueue,
    enqueue_dicts_with_queue_return,
)

__all__ = [
    "FIFOQueue",
    "MultiFIFOQueue",
    "MultiQueueRunner",
    "PaddingFIFOQueue",
    "enqueue_dicts_with_queue_return",
]
