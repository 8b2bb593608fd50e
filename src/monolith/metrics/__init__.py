"""Metrics of streams: fed batch by batch, read at any time, merged across workers.

May import: torch. Read `metric.py` first: all have ``update``, ``compute``, ``merge``, ``reset``, ``state`` and
``load_state``, take sample weights, and reject predictions that are not finite. `docs/how-to/metrics.md` compares
them.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
