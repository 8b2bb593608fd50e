"""Parameter servers: rows and dense weights that live in other processes.

Imports `monolith.checkpoint` and what is below it. Read `server` first, then `cluster` (the servers as a client sees
them), `store` (the rows on them as a `monolith.tables.store.Store`) and `job` (a job of many processes). Needs grpcio,
which is imported when a server or a client is made.
"""

from __future__ import annotations

from monolith.ps.cluster import PsCluster
from monolith.ps.dense_client import DenseClient
from monolith.ps.dense_shard import DenseShard
from monolith.ps.job import JobClient
from monolith.ps.server import PsServer
from monolith.ps.store import PsStore

__all__ = ["DenseClient", "DenseShard", "JobClient", "PsCluster", "PsServer", "PsStore"]
