"""Push: sends rows of a delta log to receivers that cannot read it.

Read `client.py` first, which also discovers the receivers; `log_rows.py` reads the rows and builds the requests,
and `target_run.py` sends them to one receiver and stores its position.
"""

from __future__ import annotations

__all__: list[str] = []
