"""How the processes of a run train one model: alone, over parameter servers, or as ranks in step.

`strategy.py` is the interface; `single.py`, `servers.py` and `ranks.py` implement it. Sessions and trainers call it
and do not ask which one they have.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
