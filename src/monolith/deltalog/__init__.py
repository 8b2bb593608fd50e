"""The delta log: the changes of a run's tables as numbered, fenced and checksummed records for its followers.

May import: `checkpoint`, `tables`, the Kafka client of `data`, and lower packages. Read `log.py` first; `increment.py`
defines one record, `replay.py` the rules that decide which records count, `transport.py` the interface that files,
objects and Kafka implement.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
