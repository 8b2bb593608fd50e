"""Calls that all processes of a synchronous run make together: rank, size, allgather, broadcast.

torch.distributed does the work, or Horovod or BytePS where their variables ask for them. Of the packages
below it, it needs `monolith.hook` alone. Read `calls` first.
"""

from __future__ import annotations

from monolith.collective.broadcast_hook import BroadcastGlobalVariablesHook
from monolith.collective.calls import (
    allgather,
    broadcast,
    broadcast_parameters,
    init,
    rank,
    saving_line,
    shutdown,
    size,
    training_line,
)
from monolith.collective.library import CollectiveLibrary
from monolith.collective.line import Line, RaisedByAllError
from monolith.collective.lock_step import Agreed, Call, LockStep

__all__ = [
    "Agreed",
    "BroadcastGlobalVariablesHook",
    "Call",
    "CollectiveLibrary",
    "Line",
    "LockStep",
    "RaisedByAllError",
    "allgather",
    "broadcast",
    "broadcast_parameters",
    "init",
    "rank",
    "saving_line",
    "shutdown",
    "size",
    "training_line",
]
