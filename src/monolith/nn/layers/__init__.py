"""Layers of recommender models: plain ``torch.nn.Module`` classes over dense tensors.

May import: torch and `monolith.nn._arguments`. Sizes in the docstrings: B rows of a batch, n features, k dims of an
embedding, T steps of a sequence. Start with `mlp.py`; `docs/how-to/layers.md` compares the layers.

Batches of no rows and sequences of no steps give zeros of the right shape, never NaN. A mask is True where a step
counts.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"MLPOptions": "MLPConfig"})
