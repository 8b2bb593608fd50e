"""Parameter servers: rows and dense weights in other processes.

Imports `monolith.checkpoint` and packages below it. Read `server` first, then `cluster` (client of the servers),
`store` (their rows as a `monolith.tables.store.Store`) and `job` (a job of many processes). Needs grpcio, which is
imported when a server or a client is created.
"""

from __future__ import annotations

from monolith.ps.cluster import PsCluster
from monolith.ps.dense_client import DenseClient
from monolith.ps.dense_shard import DenseShard
from monolith.ps.job import JobClient
from monolith.ps.server import PsServer
from monolith.ps.store import PsStore

__all__ = ["DenseClient", "DenseShard", "JobClient", "PsCluster", "PsServer", "PsStore"]
