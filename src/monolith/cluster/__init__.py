"""Discovery of the peers of a training process, and communication with its scheduler.

Imports nothing above `monolith.rpc`. Read `addresses` first, then `discovery` (addresses of processes), `manager`
(members of the training cluster) and `runtimes` (the scheduler that started the process).
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(
    __name__, {"RunnerSettings": "DiscoveryConfig", "SessionConfig": "SessionPeers"}
)
