"""Online: turns user events into training examples, and brings trained rows to serving processes.

May import everything below `monolith.launch`. `monolith.deltalog.publish` writes the changes of a run to a delta log,
`follower.py` keeps the tables of another process up to date from it, `monolith.online.joiner` joins impressions and
actions to examples, and `monolith.validation` measures what freshness is worth.
"""

from __future__ import annotations

from monolith.deltalog.follow.follower import Follower, Staleness
from monolith.deltalog.publish import DeltaPublisher, PublisherOptions
from monolith.hooks.publish import DeltaPublishHook

__all__ = ["DeltaPublishHook", "DeltaPublisher", "Follower", "PublisherOptions", "Staleness"]
