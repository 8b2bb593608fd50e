"""Push: rows of a delta log sent to receivers that cannot read it.

Read `client.py` first; `log_rows.py` has what is sent, `positions.py` how far each receiver is, `row_parts.py` the
requests, and `backend.py` who the receivers are.
"""

from __future__ import annotations

__all__: list[str] = []
