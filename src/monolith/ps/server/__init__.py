"""One parameter server: the rows and dense weights it hosts, and the calls it answers.

Read `server.py` first; `control_service.py` lists the calls.
"""

from __future__ import annotations

__all__: list[str] = []
