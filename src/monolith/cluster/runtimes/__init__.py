"""The schedulers that start our processes: Primus, MLP, Open MPI.

`primus` imports grpc only when there is a master to call.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
