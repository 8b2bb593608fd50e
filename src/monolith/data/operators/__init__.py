"""Operators on batches: filters, labels, ids, sampling and negatives, vectorized over the rows of a batch.

Each is a small frozen config that takes a `Batch` and returns one, or None if no row is left; use it with a dataset's
``map`` or by hand. Read `conditions` first (what an operator is, filters and their combinations), then `add_label`
(labels of several tasks from actions). Random decisions are a function of the seed and of the row (`row_draws`), so
they are the same in every run. May import what `monolith.data` may.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"PoolLimits": "PoolConfig"})
