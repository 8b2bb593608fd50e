"""Calls that all processes of a synchronous run make together: rank, size, allgather, broadcast.

torch.distributed does the work, or Horovod or BytePS where their variables ask for them. Of the packages
below it, it needs `monolith.hook` alone. Read `calls` first.
"""

from __future__ import annotations

from monolith.collective.broadcast_hook import BroadcastGlobalVariablesHook
from monolith.collective.calls import allgather, broadcast, broadcast_parameters, init, rank, shutdown, size
from monolith.collective.library import CollectiveLibrary

__all__ = [
    "BroadcastGlobalVariablesHook",
    "CollectiveLibrary",
    "allgather",
    "broadcast",
    "broadcast_parameters",
    "init",
    "rank",
    "shutdown",
    "size",
]
