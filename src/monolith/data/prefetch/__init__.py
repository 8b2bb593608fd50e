"""Batches made ahead of their use, in threads that always end.

May import: `tensors`, `dependence`, `errors` and torch. Read `enqueue` first, then `queues` and `runner`;
`bounded_queue` has the locking, and `staging` how CUDA tensors change threads.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
