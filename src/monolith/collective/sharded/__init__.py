"""Tables whose rows are divided over the ranks of a synchronous job; each rank owns a share of the buckets.

Read `store.py` first: `ShardedStore` implements the store interface over the exchanges of this package.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
