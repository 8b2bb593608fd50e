"""The engine of `Embeddings`: from the ids of a batch to pooled vectors, and from gradients back to row updates.

Read `embeddings.py` first, then `passes.py`, which tracks each forward pass until its update is applied.
"""

from __future__ import annotations

__all__: list[str] = []
