"""The client of parameter servers: `PsCluster` holds the connections, `PsStore` implements the store interface."""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
