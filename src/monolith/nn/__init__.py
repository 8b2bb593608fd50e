"""Parts of models: embeddings over slots of ids.

Imports `tables`, `tensors` and what is below them. Read `embeddings.py` first.
"""

from __future__ import annotations

from monolith.nn.combiners import Combiner, FirstN, ReduceMean, ReduceSum
from monolith.nn.embeddings import Embeddings, PlannedBatch
from monolith.nn.looked_up import LookedUp
from monolith.nn.slot import Slice, Slot

__all__ = [
    "Combiner",
    "Embeddings",
    "FirstN",
    "LookedUp",
    "PlannedBatch",
    "ReduceMean",
    "ReduceSum",
    "Slice",
    "Slot",
]
