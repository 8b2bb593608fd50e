"""Batches made ahead of their use, in threads that always end.

May import: `tensors`, `dependence`, `errors` and torch. Read `enqueue` first, then `multi_queue` and `runner`; `gate`
has the locking.
"""

from __future__ import annotations

from monolith.data.prefetch.bounded_queue import BoundedQueue
from monolith.data.prefetch.element import element_of
from monolith.data.prefetch.enqueue import Taker, enqueue_dicts_with_queue_return, prefetch
from monolith.data.prefetch.fifo_queue import FIFOQueue, PaddingFIFOQueue, ops_of
from monolith.data.prefetch.multi_queue import ElementQueue, MultiFIFOQueue
from monolith.data.prefetch.runner import MultiQueueRunner

__all__ = [
    "BoundedQueue",
    "ElementQueue",
    "FIFOQueue",
    "MultiFIFOQueue",
    "MultiQueueRunner",
    "PaddingFIFOQueue",
    "Taker",
    "element_of",
    "enqueue_dicts_with_queue_return",
    "ops_of",
    "prefetch",
]
