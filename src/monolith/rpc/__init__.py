"""Remote calls: the one place for gRPC, with the tunnel of core traffic.

`open_channel` and `RpcServer` are its two ends, `status_of` and `error_of` convert errors.

May import: `tensors`, `observe`, `files` and what is below them.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
