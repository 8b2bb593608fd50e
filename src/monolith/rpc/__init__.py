"""Remote calls: channels, handlers, credentials, connection limits and the tunnel of core traffic.

May import: `tensors`, `observe`, `files` and what is below them.
"""

from __future__ import annotations

__all__: list[str] = []
