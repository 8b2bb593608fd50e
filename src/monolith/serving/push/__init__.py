"""Push: sends rows of a delta log to receivers that cannot read it.

Read `client.py` first; `log_rows.py` reads the rows, `positions.py` stores the position of each receiver,
`row_parts.py` builds the requests, and `backend.py` discovers the receivers.
"""

from __future__ import annotations

__all__: list[str] = []
