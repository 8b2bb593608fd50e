"""Dense weights on parameter servers: layout over the servers, wire messages, the client and the server's shard."""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
