"""Tables whose rows are divided over the ranks of a synchronous job; each rank owns a share of the buckets.

Read `store.py` first: `ShardedStore` implements the store interface over the exchanges of this package.
"""

from __future__ import annotations

__all__: list[str] = []
