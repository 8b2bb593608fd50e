"""Agreement among the processes of a job: membership, barriers, flags, file queues and the coordinator on server 0.

May import: `export` and what is below it. Read `coordination.py` first: it decides, from events and a time, what the
coordinator answers; `coordinator_service.py` serves it, `job.py` is its client.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
