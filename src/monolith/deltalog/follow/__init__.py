"""Following a delta log: reads increments and applies them to the tables and weights of a running model.

Read `follower.py` first.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
