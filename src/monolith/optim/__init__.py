"""How dense parameters learn: optimizers, clipping, learning-rate schedules, gradients through a part of a model.

May import: `config`, `dependence`, `errors` and torch; never `tables`: what concerns rows takes and returns plain
tensors and numbers. Read `adaptive.py` first, then `_dense_optimizer.py`, which all optimizers share.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"ShampooOptions": "ShampooConfig"})
