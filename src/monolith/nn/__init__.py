"""What models are made of: embeddings over slots of ids, layers and losses over dense tensors.

May import: `tables`, `tensors`, `data`, `optim` and below. Read `embeddings.py` first, then `layers/mlp.py`; `layers/`
and `losses/` have a concept per file, and everything public is exported here.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(
    __name__,
    {
        "BatchTurn": "BatchContext",
        "LookedUp": "EmbeddingOutputs",
        "MLPOptions": "MLPConfig",
    },
)
