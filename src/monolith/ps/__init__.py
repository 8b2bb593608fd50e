"""Parameter servers: rows and dense weights in other processes.

Imports `monolith.checkpoint` and packages below it. Read `server.server` first, then `client.cluster` (client of the
servers), `client.store` (their rows as a `monolith.tables.store.Store`) and `monolith.job` (a job of many processes).
Needs grpcio, which is imported when a server or a client is created.
"""

from __future__ import annotations

from monolith.job.job import JobClient
from monolith.ps.client.cluster import PsCluster
from monolith.ps.client.store import PsStore
from monolith.ps.dense.client import DenseClient
from monolith.ps.dense.shard import DenseShard
from monolith.ps.server.server import PsServer

__all__ = ["DenseClient", "DenseShard", "JobClient", "PsCluster", "PsServer", "PsStore"]
