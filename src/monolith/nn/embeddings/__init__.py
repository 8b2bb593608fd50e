"""The engine of `Embeddings`: from the ids of a batch to pooled vectors, and from gradients back to row updates.

Read `embeddings.py` first, then `passes.py`, which tracks each forward pass until its update is applied.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
