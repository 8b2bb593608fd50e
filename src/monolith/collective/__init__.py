"""Calls that all processes of a synchronous run make together: gather, broadcast, sum, exchange.

They use torch.distributed, or Horovod or BytePS where their variables select them. Read `calls` first, then `line` (one
order for all of them) and `lock_step` (how ranks agree, and how those without a batch follow).
"""

from __future__ import annotations

from monolith.collective.calls import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_parameters,
    init,
    key_store,
    rank,
    saving_line,
    shutdown,
    size,
    training_line,
)
from monolith.collective.library import CollectiveLibrary
from monolith.collective.lock_step import Agreed, Call, LockStep
from monolith.collective.serial_executor import Line, RaisedByAllError
from monolith.collective.sharded.store import ShardedStore

__all__ = [
    "Agreed",
    "Call",
    "CollectiveLibrary",
    "Line",
    "LockStep",
    "RaisedByAllError",
    "ShardedStore",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_parameters",
    "init",
    "key_store",
    "rank",
    "saving_line",
    "shutdown",
    "size",
    "training_line",
]
