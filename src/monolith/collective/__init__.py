"""Calls that all processes of a synchronous run make together: gather, broadcast, sum, exchange.

They use torch.distributed, or Horovod or BytePS where their variables select them. Read `calls` first, then
`serial_executor` (one order for all of them) and `lock_step` (how ranks agree, and how those without a batch follow).
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(
    __name__, {"BroadcastGlobalVariablesHook": "monolith.hooks.BroadcastGlobalVariablesHook", "Line": "SerialExecutor"}
)
