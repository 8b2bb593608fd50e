"""Calls that all processes of a synchronous run make together: gather, broadcast, sum, exchange.

They use torch.distributed, or Horovod or BytePS where their variables select them. Read `calls` first, then
`serial_executor` (one order for all of them) and `lock_step` (how ranks agree, and how those without a batch follow).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
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
from monolith.collective.serial_executor import RaisedByAllError, SerialExecutor
from monolith.collective.sharded.store import ShardedStore

__all__ = [
    "Agreed",
    "Call",
    "CollectiveLibrary",
    "LockStep",
    "RaisedByAllError",
    "SerialExecutor",
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

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(
        __name__,
        {
            "BroadcastGlobalVariablesHook": "monolith.hooks.BroadcastGlobalVariablesHook",
            "Line": "SerialExecutor",
        },
    )
