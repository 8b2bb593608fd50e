"""Online: turns user events into training examples, and brings trained rows to serving processes.

May import everything below `monolith.launch`. `monolith.deltalog.publish` writes the changes of a run to a delta log,
`follower.py` keeps the tables of another process up to date from it, `monolith.online.joiner` joins impressions and
actions to examples, and `monolith.validation` measures what freshness is worth.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"PublisherOptions": "PublisherConfig"})
