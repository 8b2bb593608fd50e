"""Following a delta log: reads increments and applies them to the tables and weights of a running model.

Read `follower.py` first.
"""

from __future__ import annotations

__all__: list[str] = []
