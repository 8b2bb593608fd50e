"""What one process of a job runs: worker, parameter server or rank, and the runners that choose the role."""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
