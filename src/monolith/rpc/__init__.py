"""Remote calls: channels, handlers, credentials, connection limits and the tunnel of core traffic.

May import: `tensors`, `observe`, `files` and what is below them.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
