"""One parameter server: the rows and dense weights it hosts, and the calls it answers.

Read `server.py` first; `control_service.py` lists the calls.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
