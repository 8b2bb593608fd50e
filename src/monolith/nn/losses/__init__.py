"""Losses of recommender models: clicks, retrieval, ranking.

May import: torch, `monolith.nn.layers`. Start with `sigmoid.py` for clicks, `in_batch.py` for two towers,
`ranking.py` for lists. Every loss is to be minimised and documents what its ``reduction`` averages over; the default is
the mean, so that learning rate and clipping do not depend on the batch size. A batch of nothing has loss 0.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
