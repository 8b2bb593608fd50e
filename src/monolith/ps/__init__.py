"""Parameter servers: rows and dense weights in other processes.

Imports `monolith.checkpoint` and packages below it. Read `server.server` first, then `client.cluster` (client of the
servers), `client.store` (their rows as a `monolith.tables.store.Store`) and `monolith.job` (a job of many processes).
Needs grpcio, which is imported when a server or a client is created.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
